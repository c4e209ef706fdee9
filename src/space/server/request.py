"""One request as the routes see it: who asks, and the control plane to ask.

It is a Starlette request, because FastAPI recognises those in signatures; what it adds is filled in by the edge
(request id, headers) and by the endpoint (principal, idempotency) before a route runs.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from starlette.requests import Request
from starlette.types import Scope

from space.core.account import Call, IdempotencyRef, Principal
from space.core.errors import Unauthenticated

if TYPE_CHECKING:
    from space.server.services import Services

HEADERS = "space.headers"
REQUEST_ID = "space.request_id"
SERVICES = "space.services"
PRINCIPAL = "space.principal"
CONCURRENCY = "space.concurrency"
REFUSALS = "space.refusals"


def header_map(scope: Scope) -> dict[bytes, bytes]:
    """Index the headers by lower-case name; the last of a name wins."""
    return dict(scope["headers"])


class ApiRequest(Request):
    """A request to the native API."""

    _call: Call | None = None
    action: str = "unknown"

    @property
    def services(self) -> "Services":
        return cast("Services", self.scope[SERVICES])

    @property
    def request_id(self) -> str:
        return cast("str", self.scope[REQUEST_ID])

    @property
    def address(self) -> str | None:
        client = self.scope.get("client")
        return client[0] if client else None

    @property
    def principal(self) -> Principal:
        """Who asks; on a public route there is nobody."""
        principal = self.scope.get(PRINCIPAL)
        if principal is None:
            raise Unauthenticated("this needs a token: send `Authorization: Bearer …`")
        return cast("Principal", principal)

    @property
    def call(self) -> Call:
        """This request as the control plane knows it."""
        if self._call is None:
            self._call = Call(
                principal=self.principal, action=self.action, request_id=self.request_id, address=self.address
            )
        return self._call

    def reserve(self, key: IdempotencyRef) -> None:
        """Tie what this call changes to a reserved idempotency key."""
        self._call = replace(self.call, idempotency=key)

    def header(self, name: bytes) -> str | None:
        """Return a header by its lower-case name."""
        value = self.scope[HEADERS].get(name)
        return value.decode("latin-1") if value is not None else None

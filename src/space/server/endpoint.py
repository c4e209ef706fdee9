"""An endpoint: one method of one path, what it needs, and what happens around it.

In order: who asks, whether they may, how many requests they have in flight, the arguments, the idempotency key, the
route itself; and on the refusal of a change, the audit log.  The body of a refused caller is not read.

FastAPI documents an endpoint from its signature; `serve` runs it (see `binding` for why).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from space.core.account import Scope as Right
from space.core.errors import SpaceError, Unauthenticated
from space.server.bearer import bearer
from space.server.binding import Binding, Handler, read_body
from space.server.documentation import Document
from space.server.idempotency import KEPT_ALTHOUGH_MADE_AGAIN, Replayer, idempotent
from space.server.request import CONCURRENCY, PRINCIPAL, REFUSALS, ApiRequest
from space.server.revocation import CutWhenRevoked

CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What an endpoint needs of its caller, and how it is treated."""

    right: Right | None = None  #: None: any authenticated caller
    is_public: bool = False  #: the endpoint itself looks at who asks, or nobody needs to
    scheme: str | None = None  #: a security scheme that a public endpoint checks itself
    is_stream: bool = False  #: its answer may never end: no HEAD
    keeps_body: bool = True  #: False: the answer holds a secret and is never stored; see `replay`
    kept_bytes: int = KEPT_ALTHOUGH_MADE_AGAIN  #: of an answer that `replay` could make again
    replay: Replayer | None = None  #: makes the answer again from what the idempotency key is linked to
    is_rebuilt: bool = False  #: a success is not stored for its key at all: `replay` makes the very same answer
    takes_key: bool = True  #: whether an `Idempotency-Key` is honoured, if it is a POST
    is_question: bool = False  #: a POST that changes nothing: its refusal is no matter for the audit log


class Endpoint(APIRoute):
    """A route that FastAPI documents and we run."""

    def __init__(self, path: str, handler: Handler, *, method: str, rule: Rule, document: Document) -> None:
        self.binding = Binding(handler, path)
        details = document.arguments(method, rule, has_body=self.binding.has_body, path=path)
        super().__init__(path, handler, methods=[method], response_model=None, **details)
        self.method = method
        self.rule = rule
        self.document = document
        self.is_stream = rule.is_stream
        self._handler = handler
        self._is_change = method in CHANGES and not rule.is_question
        self._takes_key = method == "POST" and rule.takes_key and not rule.is_public

    async def serve(self, scope: Scope, receive: Receive, send: Send, values: Sequence[str]) -> None:
        """Answer one request whose path had these values."""
        request = ApiRequest(scope, receive, send)
        request.action = self.document.id
        try:
            if self.rule.is_public:
                await (await self._answer(request, values))(scope, receive, send)
                return
            principal = await request.services.tokens.verify(bearer(request))
            scope[PRINCIPAL] = principal
            if self.rule.right is not None:
                principal.require(self.rule.right)
            with scope[CONCURRENCY].admitted(principal.id):
                async with CutWhenRevoked(request.services.tokens, principal.token_id):
                    await (await self._answer(request, values))(scope, receive, send)
        except SpaceError as error:
            knows = self.rule.is_public and isinstance(
                error, Unauthenticated
            )  # a login: the control plane wrote it down
            if self._is_change and not knows:
                await scope[REFUSALS].record(request, error, values)
            raise

    async def _answer(self, request: ApiRequest, values: Sequence[str]) -> Response:
        binding = self.binding
        arguments: dict[str, Any] = binding.path(values) if values else {}
        binding.query(request.scope["query_string"], arguments)
        raw = b""
        if binding.has_body:
            raw = await read_body(request, request.services.settings.max_body_mib << 20)
            binding.body(raw, request.header(b"content-type"), arguments)
        if self._takes_key and (key := request.header(b"idempotency-key")) is not None:
            return await idempotent(
                request, key, raw, lambda: self._handler(request, **arguments), rule=self.rule, arguments=arguments
            )
        return await self._handler(request, **arguments)


class Routes:
    """Endpoints of one aggregate, collected by decorators."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.endpoints: list[Endpoint] = []

    def add(self, method: str, path: str, *, rule: Rule, document: Document) -> Callable[[Handler], Handler]:
        """Register the decorated function."""

        def register(handler: Handler) -> Handler:
            self.endpoints.append(Endpoint(path, handler, method=method, rule=rule, document=document))
            return handler

        return register

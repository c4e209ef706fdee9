"""`Idempotency-Key`: the first answer again, instead of the change again.

The key belongs to caller, method and path.  Scopes were checked before; the body is compared by its hash.  Answers
that hold a secret are not kept: what the key is linked to lets `Rule.replay` make one with a fresh secret.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from space.control.idempotency import Idempotency, Linked, Replay
from space.core.account import IdempotencyRef
from space.core.errors import Conflict, InvalidRequest, SpaceError
from space.server.errors import envelope, status_of
from space.server.request import ApiRequest

if TYPE_CHECKING:
    from space.server.endpoint import Rule

Replayer = Callable[[ApiRequest, Linked, Mapping[str, Any]], Awaitable[Response]]

KEY = re.compile(r"[!-~]{1,255}")
KEPT_HEADERS = ("location", "preference-applied")
KEPT_ALTHOUGH_MADE_AGAIN = 16_384
"""Bytes: a program's longer output is in its journal, and must not fill the database a second time."""


async def idempotent(
    request: ApiRequest,
    key: str,
    raw: bytes,
    run: Callable[[], Awaitable[Response]],
    *,
    rule: "Rule",
    arguments: Mapping[str, Any],
) -> Response:
    """Answer from the first call with this key, or make this the first."""
    if not KEY.fullmatch(key):
        raise InvalidRequest(
            "Idempotency-Key: send 1 to 255 printable ASCII characters without spaces", field="Idempotency-Key"
        )
    reference = IdempotencyRef(
        principal_id=request.principal.id,
        key=key,
        method_path=f"{request.method} {request.scope['path']}",
        request_hash=hashlib.sha256(raw).digest(),
    )
    found = await request.services.idempotency.begin(reference)
    if isinstance(found, Replay):
        return _marked(Response(found.body, found.status, dict(found.headers), "application/json"))
    if isinstance(found, Linked):
        if rule.replay is None:
            raise Conflict("the first call with this key succeeded; its answer is no longer known")
        return _marked(await rule.replay(request, found, arguments))
    request.reserve(reference)
    return await _first(request, reference, run, rule)


async def _first(
    request: ApiRequest, reference: IdempotencyRef, run: Callable[[], Awaitable[Response]], rule: "Rule"
) -> Response:
    store = request.services.idempotency
    try:
        response = await run()
    except SpaceError as error:
        status = status_of(error)
        if error.retryable or status >= 500:
            await store.abandon(reference)
        else:
            await store.complete(reference, status=status, body=envelope(error, request.request_id))
        raise
    except BaseException:
        await store.abandon(reference)
        raise
    kept = _Kept(store, reference, response, rule)
    if rule.replay is None:
        await kept.keep()
        return response
    return kept


class _Kept(Response):
    """An answer that is sent first and kept then: a crash in between loses nothing, since it can be made again.

    The key was linked to what the change made, in the change's own transaction.  Until the answer is kept, a second
    request with the key waits.
    """

    def __init__(self, store: Idempotency, reference: IdempotencyRef, response: Response, rule: "Rule") -> None:
        self._store = store
        self._reference = reference
        self._response = response
        self._keeps_body = rule.keeps_body
        self._is_rebuilt = rule.is_rebuilt
        self._kept_bytes = rule.kept_bytes
        self._can_be_made_again = rule.replay is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._response(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self.keep()

    async def keep(self) -> None:
        response = self._response
        if self._is_rebuilt and response.status_code < 300:
            await self._store.abandon(self._reference)  # the link that the change made is all that is needed
            return
        keeps_body = self._keeps_body and (not self._can_be_made_again or len(response.body) <= self._kept_bytes)
        await self._store.complete(
            self._reference,
            status=response.status_code,
            body=bytes(response.body) if keeps_body else b"",
            headers={name: value for name, value in response.headers.items() if name in KEPT_HEADERS},
            keep_body=keeps_body,
        )


def _marked(response: Response) -> Response:
    response.headers["Idempotency-Replayed"] = "true"
    return response

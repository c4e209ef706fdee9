"""`Idempotency-Key`: the first answer again, instead of the change again.

The key belongs to caller, method and path.  Scopes were checked before; the body is compared by its hash.  Answers
that hold a secret are not kept: what the key is linked to lets `Rule.replay` make one with a fresh secret.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from space.control.idempotency import Linked, Replay
from space.core.account import IdempotencyRef
from space.core.errors import Conflict, InvalidRequest, SpaceError
from space.server.errors import envelope, status_of
from space.server.request import ApiRequest

if TYPE_CHECKING:
    from space.server.endpoint import Rule

Replayer = Callable[[ApiRequest, Linked, Mapping[str, Any]], Awaitable[Response]]

KEY = re.compile(r"[!-~]{1,255}")
KEPT_HEADERS = ("location", "preference-applied")


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
    return await _first(request, reference, run, keeps_body=rule.keeps_body)


async def _first(
    request: ApiRequest, reference: IdempotencyRef, run: Callable[[], Awaitable[Response]], *, keeps_body: bool
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
    headers = {name: value for name, value in response.headers.items() if name in KEPT_HEADERS}
    body = bytes(response.body) if keeps_body else b""
    await store.complete(reference, status=response.status_code, body=body, headers=headers, keep_body=keeps_body)
    return response


def _marked(response: Response) -> Response:
    response.headers["Idempotency-Replayed"] = "true"
    return response

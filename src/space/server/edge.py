"""The outermost layer of an HTTP server of ours: request ids, the log, and one form for every failure.

Pure ASGI: a middleware of Starlette's kind would run each stream through a queue of its own.  Bodies, query strings
and tokens are not logged.
"""

import asyncio
import contextlib
import itertools
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from space.core.errors import PayloadTooLarge, SpaceError
from space.server.errors import envelope, error_headers, status_of
from space.server.request import HEADERS, PRINCIPAL, REQUEST_ID, header_map

log = structlog.get_logger()

_PROCESS = secrets.token_hex(6).encode()
_numbers = itertools.count(1)

Inner = Callable[[Scope, Receive, Send], Awaitable[None]]

REQUEST_ID_FORM = re.compile(rb"[A-Za-z0-9._-]{1,128}")
MAX_LOGGED_PATH = 256
LARGE_BODY = 65_536
"""A refused request whose body is larger than this is not read to its end: the connection is closed instead."""

LINGER_BYTES = 16 << 20
LINGER_SECONDS = 3.0

CLIENT_GONE = 499  # nginx's number for it; nobody receives it, it is for the log


class Edge:
    """Wraps an ASGI callable whose failures are `SpaceError`s."""

    def __init__(self, inner: Inner, *, state: Mapping[str, Any], server: str) -> None:
        self._inner = inner
        self._state = dict(state)
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await _other(scope, receive, send)
            return
        scope.update(self._state)
        headers = scope[HEADERS] = header_map(scope)
        given = headers.get(b"x-request-id", b"")
        raw_id = given if REQUEST_ID_FORM.fullmatch(given) else _new_request_id()
        scope[REQUEST_ID] = raw_id.decode("ascii")
        exchange = _Exchange(scope, receive, send, raw_id)
        started = time.monotonic()
        try:
            await self._inner(scope, receive, exchange.send)
        except SpaceError as error:
            await exchange.fail(error)
        except ClientDisconnect:
            exchange.status = CLIENT_GONE
        except Exception:
            log.exception("request.crashed", server=self._server, request_id=scope[REQUEST_ID], path=_path(scope))
            await exchange.fail(SpaceError("internal"))
        finally:
            self._log(scope, exchange.status, time.monotonic() - started)

    def _log(self, scope: Scope, status: int, seconds: float) -> None:
        principal = scope.get(PRINCIPAL)
        log.info(
            "request.served",
            server=self._server,
            method=scope["method"][:16],
            path=_path(scope),
            status=status,
            ms=round(seconds * 1000, 2),
            request_id=scope[REQUEST_ID],
            principal=principal.id if principal is not None else None,
        )


def _new_request_id() -> bytes:
    """Make an id that no other request has; it is no secret, and randomness for each would cost 15 µs."""
    return b"req-%b%08x" % (_PROCESS, next(_numbers))


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path[:MAX_LOGGED_PATH]


class _Exchange:
    """One answer: adds what every answer has, and knows whether it has begun."""

    __slots__ = ("_raw_id", "_receive", "_scope", "_send", "has_begun", "status")

    def __init__(self, scope: Scope, receive: Receive, send: Send, raw_id: bytes) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._raw_id = raw_id
        self.has_begun = False
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            self.status = message["status"]
            message["headers"].append((b"x-request-id", self._raw_id))
        await self._send(message)

    async def fail(self, error: SpaceError) -> None:
        """Answer with the envelope; if the answer has begun, break it off, so that it cannot pass for whole."""
        if self.has_begun:
            log.warning("answer.broken_off", request_id=self._scope[REQUEST_ID], error=error.code)
            return
        body = envelope(error, self._scope[REQUEST_ID])
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *error_headers(error),
        ]
        is_cut = self._has_large_body() or isinstance(error, PayloadTooLarge)
        if is_cut:
            headers.append((b"connection", b"close"))
        if status_of(error) == 500 and type(error) is not SpaceError:
            log.error("request.failed", request_id=self._scope[REQUEST_ID], error=error.message, **_plain(error))
        await self.send({"type": "http.response.start", "status": status_of(error), "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": is_cut})
        if is_cut:
            await self._linger()
            await self.send({"type": "http.response.body", "body": b""})

    async def _linger(self) -> None:
        """Read a little more before closing: clients that send first and read then would see only a reset."""
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while size < LINGER_BYTES:
                    message = await self._receive()
                    size += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    def _has_large_body(self) -> bool:
        headers = self._scope[HEADERS]
        length = headers.get(b"content-length", b"0")
        return b"transfer-encoding" in headers or not length.isdigit() or int(length) > LARGE_BODY


def _plain(error: SpaceError) -> dict[str, Any]:
    return {f"detail_{name}": str(value)[:1000] for name, value in error.details.items()}


async def _other(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1000})
        return
    while True:  # lifespan: starting and stopping is `app.py`'s business
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return

"""Answers: JSON from orjson, streams that notice when their reader is gone."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import anyio
import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

JSON = b"application/json"


class Json(Response):
    """A JSON body.  Times are RFC 3339 in UTC with `Z`."""

    media_type = "application/json"

    def __init__(self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else dumps(content)
        super().__init__(body, status_code=status_code, headers=headers)

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else dumps(content)


def dumps(content: Any) -> bytes:
    """Write JSON as the API does."""
    return orjson.dumps(content, option=orjson.OPT_UTC_Z)


class Stream(Response):
    """A body that comes in pieces, pulled no faster than its reader takes them.

    `resources` stay open until the last piece was sent, or the reader went away: then the source is cancelled, also
    while it waits.  Memory holds one piece.
    """

    def __init__(
        self,
        source: AsyncIterator[bytes],
        *,
        media_type: str,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        resources: AsyncExitStack | None = None,
    ) -> None:
        self.status_code = status_code
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)
        self._source = source
        self._resources = resources or AsyncExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._resources:
            close = getattr(self._source, "aclose", None)
            if close is not None:  # a generator that is dropped half-way would wait for the garbage collector
                self._resources.push_async_callback(close)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
                return
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
                    async for piece in self._source:
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                    await send({"type": "http.response.body", "body": b""})
                    tasks.cancel_scope.cancel()
            except ExceptionGroup as group:  # what the source raised, in the task group's wrapping
                raise group.exceptions[0] from group.exceptions[0].__cause__


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    await wait_gone(receive)
    scope.cancel()


async def wait_gone(receive: Receive) -> None:
    """Return once the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass

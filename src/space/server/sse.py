"""Server-sent events for the API's own timelines; command output has its own, faster framing in `dataplane`."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from space.server.answers import dumps

MEDIA_TYPE = "text/event-stream"
KEEP_ALIVE_SECONDS = 15.0
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}


def frame(event: str, data: Any, *, id: str | None = None) -> bytes:
    """Write one event; JSON has no line breaks, so `data` is one line."""
    head = f"id: {id}\nevent: {event}\n" if id is not None else f"event: {event}\n"
    return head.encode() + b"data: " + dumps(data) + b"\n\n"


async def with_keep_alive(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass frames on, with a comment whenever none came for 15 seconds."""
    pending: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            if pending is None:
                pending = asyncio.ensure_future(anext(source, None))
            await asyncio.wait({pending}, timeout=KEEP_ALIVE_SECONDS)
            if not pending.done():
                yield KEEP_ALIVE
                continue
            piece = pending.result()
            pending = None
            if piece is None:
                return
            yield piece
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.wait({pending})

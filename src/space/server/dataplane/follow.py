"""One reader of one session: pulls records, frames them, sends them in large pieces.

Three tasks share a small buffer: one pulls records ahead until the buffer is full, one sends what is there, one
watches for the client's leaving and the caller's losing its rights.  A reader that takes nothing stops the pulling, so
it costs its buffer and no more.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.types import Receive, Send

from space.core.journal import JournalRecord, Trimmed
from space.server.answers import wait_gone
from space.server.dataplane.frames import Framing

BUFFER_BYTES = 262_144
KEEP_ALIVE_SECONDS = 15.0
REVOCATION_SECONDS = 3.0

Records = AsyncIterator[JournalRecord | Trimmed]


class Follower:
    """Sends a journal to one client until its final record, or until the client is gone or has lost its right."""

    def __init__(self, records: Records, framing: Framing, is_revoked: Callable[[], Awaitable[bool]]) -> None:
        self._records = records
        self._framing = framing
        self._is_revoked = is_revoked
        self._frames: list[bytes] = []
        self._size = 0
        self._something = asyncio.Event()
        self._room = asyncio.Event()
        self._has_ended = False

    async def run(self, receive: Receive, send: Send) -> None:
        """Send everything.

        Raises what reading the journal raises: the answer must then be broken off, because an orderly end would look
        like the end of the stream.
        """
        tasks = [
            asyncio.ensure_future(work)
            for work in (self._pull(), self._send_all(send), wait_gone(receive), self._watch_right())
        ]
        pulling, sending, gone, right = tasks
        try:
            await asyncio.wait({sending, gone, right}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in (pulling, sending, right):
            if not task.cancelled():
                task.result()

    async def _pull(self) -> None:
        try:
            async with contextlib.aclosing(self._records) as records:  # type: ignore[type-var]  # a generator
                async for item in records:
                    frame = self._framing(item)
                    if not frame:
                        continue
                    self._frames.append(frame)
                    self._size += len(frame)
                    self._something.set()
                    if self._size >= BUFFER_BYTES:
                        self._room.clear()
                        await self._room.wait()
        finally:
            self._has_ended = True
            self._something.set()

    async def _send_all(self, send: Send) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    await self._something.wait()
            if self._frames:
                piece = b"".join(self._frames)
                self._frames.clear()
                self._size = 0
                self._room.set()
                if not self._has_ended:
                    self._something.clear()
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            elif self._has_ended:
                return
            elif self._framing.keep_alive:
                await send({"type": "http.response.body", "body": self._framing.keep_alive, "more_body": True})

    async def _watch_right(self) -> None:
        while not await self._is_revoked():  # noqa: ASYNC110 - another process may take the right away
            await asyncio.sleep(REVOCATION_SECONDS)

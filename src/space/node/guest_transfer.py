"""A request to an agent with which bytes flow: both ways under credit, memory flat on both ends."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any

from space.core.errors import GuestUnreachable, SpaceError
from space.node.guest_errors import guest_error
from space_guest.protocol import (
    CHUNK,
    FILE_WINDOW,
    Kind,
    ProtocolError,
    decode_data,
    decode_object,
    decode_offset,
    encode,
    encode_data,
    encode_offset,
)

STALL_SECONDS = 120.0


class Transfer:
    """The channel of one such request.  Whoever opened it calls `cancel` in the end, whatever happened."""

    def __init__(
        self,
        subject: str,
        send: Callable[[bytes], None],
        *,
        room: Callable[[], Awaitable[None]],
        stall: float | None = STALL_SECONDS,
    ) -> None:
        self.number = 0
        self._subject = subject
        self._send_frame = send
        self._room = room
        self._stall = stall
        self._opened: dict[str, Any] | None = None
        self._reply: dict[str, Any] | None = None
        self._error: Exception | None = None
        self._is_cancelled = False
        self._changed = asyncio.Event()
        self._chunks: deque[bytes] = deque()
        self._received = 0
        self._consumed = 0
        self._granted = FILE_WINDOW
        self._is_ended = False
        self._sent = 0
        self._limit = FILE_WINDOW

    # Frames

    def frame(self, kind: Kind, payload: bytes) -> bool:
        is_final = kind in (Kind.REPLY, Kind.ERROR)
        if kind is Kind.REPLY:
            self._reply = decode_object(payload)
        elif kind is Kind.ERROR:
            self._error = guest_error(decode_object(payload), self._subject)
        elif kind is Kind.OPENED and self._opened is None:
            self._opened = decode_object(payload)
        elif kind is Kind.DATA and not self._is_ended:
            self._take(*decode_data(payload))
        elif kind is Kind.END and not self._is_ended:
            if decode_offset(payload) != self._received:
                raise ProtocolError("bytes end before they were complete")
            self._is_ended = True
        elif kind is Kind.CREDIT:
            limit = decode_offset(payload)
            if limit > self._sent + FILE_WINDOW:
                raise ProtocolError("credit for bytes that were never sent")
            self._limit = max(self._limit, limit)
        else:
            raise ProtocolError(f"{kind.name} on a transfer")
        self._changed.set()
        return is_final

    def lost(self, error: SpaceError) -> None:
        self._error = self._error or GuestUnreachable(error.message)
        self._changed.set()

    def _take(self, offset: int, data: bytes) -> None:
        if offset != self._received or offset + len(data) > self._granted:
            raise ProtocolError("bytes out of order or beyond their window")
        self._received += len(data)
        if not self._is_cancelled:
            self._chunks.append(data)
            if len(self._chunks) > 64:  # many small ones: keep what they cost near what they hold
                self._chunks = deque([b"".join(self._chunks)])

    # The caller's side

    async def opened(self) -> dict[str, Any]:
        """Return what the agent says before the bytes."""
        await self._until(lambda: self._opened is not None or self._reply is not None)
        if self._opened is None:
            raise GuestUnreachable("the guest agent broke the protocol: an answer where bytes were due")
        return self._opened

    async def receive(self) -> bytes:
        """Return the next bytes, `b""` once all were there; more are asked for only as they are taken."""
        await self._until(lambda: bool(self._chunks) or self._is_ended or self._reply is not None)
        if self._chunks:
            data = self._chunks.popleft()
            self._consumed += len(data)
            if self._granted - self._consumed <= FILE_WINDOW // 2:
                self._granted = self._consumed + FILE_WINDOW
                self._send_frame(encode_offset(Kind.CREDIT, self.number, self._granted))
            return data
        if not self._is_ended:
            raise GuestUnreachable("the guest agent broke the protocol: an answer before the end of the bytes")
        await self.reply()
        return b""

    async def send(self, source: AsyncIterable[bytes]) -> None:
        """Send all that `source` yields; raises the agent's refusal as soon as it is there."""
        async for block in source:
            view = memoryview(block)
            while view:
                await self._room()
                await self._until(lambda: self._sent < self._limit, needs_end=False)
                piece = bytes(view[: min(CHUNK, self._limit - self._sent)])
                self._send_frame(encode_data(self.number, self._sent, piece))
                self._sent += len(piece)
                view = view[len(piece) :]
        self._send_frame(encode_offset(Kind.END, self.number, self._sent))

    async def reply(self) -> dict[str, Any]:
        """Return the agent's answer."""
        await self._until(lambda: self._reply is not None)
        assert self._reply is not None  # noqa: S101 - awaited just now
        return self._reply

    def cancel(self) -> None:
        """Tell the agent to stop, if it has not ended; what it still sends is thrown away."""
        if not self._is_cancelled and self._reply is None and self._error is None:
            self._is_cancelled = True
            self._chunks.clear()
            self._send_frame(encode(Kind.CANCEL, self.number))

    async def _until(self, is_so: Callable[[], bool], *, needs_end: bool = True) -> None:
        """Wait for frames until `is_so`; bytes that came before a refusal are given out first."""
        while True:
            if needs_end and is_so():
                return
            if self._error is not None:
                raise self._error
            if not needs_end:
                if self._reply is not None:
                    raise GuestUnreachable("the guest agent broke the protocol: an answer before all bytes were sent")
                if is_so():
                    return
            self._changed.clear()
            try:
                async with asyncio.timeout(self._stall):
                    await self._changed.wait()
            except TimeoutError:
                raise GuestUnreachable(f"the guest agent was silent for {self._stall:g} seconds") from None

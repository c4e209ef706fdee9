"""One request of the node, and the bytes that flow with it.  No system calls."""

from __future__ import annotations

from collections.abc import Callable

from space_guest.protocol import FILE_WINDOW, Kind, ProtocolError, encode_data, encode_object, encode_offset

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs 5 ms at start
    from typing import Any

    from space_guest.connection import Connection


class Refused(Exception):
    """A request that fails with a typed code; `errno` where the kernel said so."""

    def __init__(self, code: str, message: str = "", *, errno: int | None = None, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.body = {"code": code, "message": message[:500], **({"errno": errno} if errno else {}), **details}


class Request:
    """A request until its final frame.  The service that serves it sets the `on_…` hooks and calls the rest."""

    def __init__(self, connection: Connection, channel: int, args: dict[str, Any]) -> None:
        self.connection = connection
        self.channel = channel
        self.args = args
        self.is_done = False
        self.received = 0
        self.granted = FILE_WINDOW
        self.sent = 0
        self.limit = FILE_WINDOW
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.on_end: Callable[[], None] = lambda: None
        self.on_credit: Callable[[], None] = lambda: None
        self.on_cancel: Callable[[], None] = lambda: None

    # What the service says

    def opened(self, body: dict[str, Any]) -> None:
        self._send(encode_object(Kind.OPENED, self.channel, body))

    def reply(self, body: dict[str, Any]) -> None:
        try:
            frame = encode_object(Kind.REPLY, self.channel, body)
        except ValueError:
            frame = encode_object(Kind.ERROR, self.channel, Refused("payload_too_large", "the answer is too long").body)
        self._finish(frame)

    def fail(self, refused: Refused) -> None:
        self._finish(encode_object(Kind.ERROR, self.channel, refused.body))

    def grant(self, limit: int) -> None:
        """Let the node send bytes up to the absolute offset `limit`."""
        self.granted = limit
        self._send(encode_offset(Kind.CREDIT, self.channel, limit))

    @property
    def room(self) -> int:
        return self.limit - self.sent

    def send(self, data: bytes) -> None:
        """Send bytes, at most `room` and at most a chunk."""
        self._send(encode_data(self.channel, self.sent, data))
        self.sent += len(data)

    def end(self) -> None:
        """Say that no more bytes follow."""
        self._send(encode_offset(Kind.END, self.channel, self.sent))

    def _finish(self, frame: bytes) -> None:
        self._send(frame)
        self.is_done = True
        self.connection.requests.pop(self.channel, None)

    def _send(self, frame: bytes) -> None:
        if not self.is_done and not self.connection.is_lost:
            self.connection.link.write(frame)

    # What the node says

    def receive_data(self, offset: int, data: bytes) -> None:
        if offset != self.received or offset + len(data) > self.granted:
            raise ProtocolError("bytes out of order or beyond their window")
        self.received += len(data)
        self.on_data(data)

    def receive_end(self, offset: int) -> None:
        if offset != self.received:
            raise ProtocolError("bytes end before they were complete")
        self.on_end()

    def receive_credit(self, limit: int) -> None:
        if limit > self.limit:
            self.limit = limit
            self.on_credit()

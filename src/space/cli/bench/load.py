"""A load generator for one server: HTTP/1.1 kept alive, as little work for each request as Python can do.

The same one loads both sides of a comparison, so what it costs itself makes them look more alike, never less.
"""

import asyncio
import re
import time
from urllib.parse import urlsplit

from space.cli.failure import CommandError

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def load(url: str, *, token: str, count: int, connections: int) -> tuple[list[float], float]:
    """GET a URL `count` times; return each one's milliseconds, and the seconds of all together."""
    return asyncio.run(_load(url, token, count, connections))


async def _load(url: str, token: str, count: int, connections: int) -> tuple[list[float], float]:
    parts = urlsplit(url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    head = f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    loop = asyncio.get_running_loop()
    opened: list[tuple[_Connection, int]] = []
    host, port = parts.hostname or "", parts.port or 80
    try:
        for number in range(connections):
            share = count // connections + (number < count % connections)
            _, connection = await loop.create_connection(lambda: _Connection(head), host, port)
            opened.append((connection, share))
        began = time.perf_counter()
        await asyncio.gather(*(connection.run(share) for connection, share in opened))
        seconds = time.perf_counter() - began
    finally:
        for connection, _ in opened:
            connection.close()
    return [sample for connection, _ in opened for sample in connection.samples], seconds


class _Connection(asyncio.Protocol):
    """Asks again as soon as it has been answered."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self._buffer = bytearray()
        self._needed: int | None = None
        self._left = 0
        self._sent = 0.0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.samples: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # TCP has a full transport

    async def run(self, count: int) -> None:
        self._left = count
        if count:
            self._ask()
            await self._done

    def close(self) -> None:
        self._transport.close()

    def _ask(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._needed is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(self._buffer, 0, end)
            if not self._buffer.startswith(b"HTTP/1.1 200") or length is None:
                self._fail(f"the server answered {bytes(self._buffer[:60])!r}")
                return
            self._needed = end + 4 + int(length[1])
        if len(self._buffer) < self._needed:
            return
        self.samples.append((time.perf_counter() - self._sent) * 1000)
        self._buffer.clear()
        self._needed = None
        self._left -= 1
        if self._left:
            self._ask()
        else:
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._fail("the server closed the connection")

    def _fail(self, why: str) -> None:
        if not self._done.done():
            self._done.set_exception(CommandError(why))

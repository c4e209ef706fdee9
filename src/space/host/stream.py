"""A socket as `core.ports.ByteStream`."""

import asyncio
import contextlib
import socket

from space.host.readiness import settle

#: Operations that need not wait are allowed this often in a row; then the event loop gets its turn, or one fast
#: guest would starve every other sandbox of the process.
BURST = 8


class SocketStream:
    """A connected, non-blocking stream socket; owns it.  Send and receive may run at the same time, once each."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._receives = 0
        self._sends = 0
        self._waits: set[asyncio.Future[None]] = set()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return at least one byte, or `b""` once either end has closed or reset."""
        while self._socket.fileno() >= 0:
            try:
                data = self._socket.recv(max_bytes)
            except BlockingIOError:
                self._receives = 0
                try:
                    await self._ready(write=False)
                except ConnectionAbortedError:
                    break
            except (ConnectionError, TimeoutError):
                break
            else:
                self._receives += 1
                if self._receives >= BURST:
                    self._receives = 0
                    await asyncio.sleep(0)
                return data
        return b""

    async def send(self, data: bytes) -> None:
        """Send all of `data`; raises `ConnectionError` once either end has closed."""
        rest = memoryview(data)
        while rest:
            if self._socket.fileno() < 0:
                raise ConnectionAbortedError("the stream is closed")
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                self._sends = 0
                await self._ready(write=True)
                continue
            except TimeoutError as error:
                raise ConnectionAbortedError("the other end does not answer") from error
            self._sends += 1
            if self._sends >= BURST:
                self._sends = 0
                await asyncio.sleep(0)

    async def _ready(self, *, write: bool) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        self._waits.add(ready)
        add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
        descriptor = self._socket.fileno()
        if descriptor < 0:
            raise ConnectionAbortedError("the stream is closed")
        add(descriptor, settle, ready)
        try:
            await ready
        finally:
            self._waits.discard(ready)
            if self._socket.fileno() >= 0:
                remove(descriptor)

    async def aclose(self) -> None:
        """Close it; whoever waits in `receive` or `send` gets the end or an error."""
        descriptor = self._socket.fileno()
        if descriptor < 0:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(descriptor)
        loop.remove_writer(descriptor)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for wait in tuple(self._waits):
            if not wait.done():
                wait.set_exception(ConnectionAbortedError("the stream is closed"))

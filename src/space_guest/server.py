"""The agent's TCP side: accept, authenticate, keep the newest authenticated connection."""

from __future__ import annotations

import socket
from collections import deque

from space_guest.connection import Connection
from space_guest.loop import READ, WRITE, Loop, Timer
from space_guest.protocol import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from space_guest.ports import Services

HIGH_WATER = 1024 * 1024
AT_ONCE = 64 * 1024  #: waiting for the end of the turn gains nothing beyond it
GREETING_SECONDS = 10.0
MAX_STRANGERS = 32


_scratch = memoryview(bytearray(262144))


class Server:
    """Listens.  Programs of the guest can connect too: few strangers may wait, ten seconds, oldest out first."""

    def __init__(self, loop: Loop, services: Services, token: str, address: tuple[str, int]) -> None:
        self._loop = loop
        self._services = services
        self.token = token
        self._strangers: deque[SocketLink] = deque()
        self.present: Connection | None = None
        self._listener = socket.create_server(address, backlog=128)
        self._listener.setblocking(False)
        loop.watch(self._listener.fileno(), READ, self._accept)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def authenticated(self, connection: Connection) -> None:
        """Keep this connection and drop the one before it."""
        self._strangers = deque(link for link in self._strangers if link.connection is not connection)
        previous, self.present = self.present, connection
        if previous is not None:
            previous.lost()

    def renew(self, token: str) -> None:
        """Let nobody in any more but who knows this token; the present connection stays."""
        self.token = token
        self._drop_strangers()

    def hang_up(self) -> None:
        """Close every connection, the present one once what it was told is on its way."""
        self._drop_strangers()
        if self.present is not None:
            self.present.link.finish()
            self.present = None

    def _drop_strangers(self) -> None:
        while self._strangers:
            self._strangers.popleft().connection.lost()

    def _accept(self, events: int) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._strangers.append(SocketLink(self._loop, client, self._services, self.token))
        while len(self._strangers) > MAX_STRANGERS:
            self._strangers.popleft().connection.lost()


class SocketLink:
    """A connection's socket: what cannot be sent at once waits here."""

    def __init__(self, loop: Loop, client: socket.socket, services: Services, token: str) -> None:
        self._loop = loop
        self._socket = client
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._is_blocked = False
        self._is_due = False
        self._is_ending = False
        self.connection = Connection(self, services, token)
        self._greeting: Timer | None = loop.call_later(GREETING_SECONDS, self._lose_stranger)
        loop.watch(client.fileno(), READ, self._ready)

    @property
    def has_room(self) -> bool:
        return self._size < HIGH_WATER

    def write(self, data: bytes) -> None:
        if self._socket.fileno() < 0:
            return
        self._waiting.append(data)
        self._size += len(data)
        if self._is_blocked:
            return
        if self._size >= AT_ONCE:
            self._flush()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush_due)

    def finish(self) -> None:
        """Send what waits, then hang up."""
        self._is_ending = True
        if self._waiting and not self._is_blocked:
            self._flush()
        elif not self._waiting:
            self.connection.lost()

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._waiting.clear()
            self._size = 0

    def _ready(self, events: int) -> None:
        if events & WRITE & ~READ:
            self._flush()
            if self.has_room:
                self.connection.room()
        if events & READ:
            self._receive()

    def _receive(self) -> None:
        try:
            # Into one buffer: a new one of this size is mapped and unmapped by malloc, which is slow under gVisor.
            data = bytes(_scratch[: self._socket.recv_into(_scratch)])
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.connection.lost()
            return
        try:
            self.connection.feed(data)
        except ProtocolError:
            self.connection.lost()
        except BaseException:
            self.connection.lost()
            raise
        if self._greeting is not None and self.connection.is_authenticated:
            self._greeting.cancel()
            self._greeting = None

    def _lose_stranger(self) -> None:
        if not self.connection.is_authenticated:
            self.connection.lost()

    def _flush_due(self) -> None:
        """Send the small frames of one turn of the loop at once: each packet wakes the node."""
        self._is_due = False
        if not self._is_blocked and self._waiting:
            self._waiting = deque((b"".join(self._waiting),))
            self._flush()

    def _flush(self) -> None:
        try:
            while self._waiting:
                data = self._waiting[0]
                sent = self._socket.send(data)
                self._size -= sent
                if sent < len(data):
                    self._waiting[0] = data[sent:]
                else:
                    self._waiting.popleft()
        except BlockingIOError:
            self._block(True)
            return
        except OSError:
            self._loop.call_later(0, self.connection.lost)  # not now: the caller is in the middle of a frame
            return
        self._block(False)
        if self._is_ending:
            self._loop.call_later(0, self.connection.lost)  # not now, as above

    def _block(self, is_blocked: bool) -> None:
        if is_blocked != self._is_blocked:
            self._is_blocked = is_blocked
            self._loop.watch(self._socket.fileno(), READ | WRITE if is_blocked else READ, self._ready)

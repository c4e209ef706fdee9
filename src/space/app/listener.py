"""HTTP listeners in our own task group: uvicorn without its signal handlers."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from space.core.errors import Unavailable
from space.server.protocol import HttpProtocol

#: Streams that are still open this long after a stop are cut; their readers come back with their last event id.
GRACE_SECONDS = 1


class Listener(uvicorn.Server):
    """One ASGI application on one socket; `serve_until_stopped` ends after `stop`."""

    def __init__(self, app: Any, sock: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        self._sock = sock

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `up.py`: there are two listeners and one process."""
        yield

    async def serve_until_stopped(self) -> None:
        await self.serve(sockets=[self._sock])

    def stop(self) -> None:
        self.should_exit = True


def listen(address: str, *, setting: str) -> socket.socket:
    """Bind `HOST:PORT`; port 0 takes a free one.

    Raises:
        Unavailable: the address is taken or not ours; the message names `setting`.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY on what it accepts; else each answer waits 40 ms for an ACK.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _keep_alive(sock)
        sock.bind((host, int(port)))
        sock.listen(1024)
    except OSError as error:
        sock.close()
        raise Unavailable(
            f"cannot listen on {address}: {error.strerror}; stop what uses it, or set {setting} to another address"
        ) from error
    sock.setblocking(False)
    return sock


def _keep_alive(sock: socket.socket) -> None:
    """Have the kernel notice callers whose machine vanished; what is accepted inherits it.

    A call that waits for a program sends nothing, so without this the program would run for nobody, for ever.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def url_of(sock: socket.socket) -> str:
    """Return the URL under which this machine reaches the socket."""
    host, port = sock.getsockname()[:2]
    local = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{local}:{port}"

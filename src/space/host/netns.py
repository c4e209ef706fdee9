"""Named network namespaces, and dialling out of one.

Names are those of `ip netns`: bind mounts below `/run/netns`.
"""

import asyncio
import contextlib
import errno
import socket
from pathlib import Path

from space.host import linux
from space.host.readiness import writable
from space.host.stream import SocketStream

DIRECTORY = Path("/run/netns")
#: A SYN that a starting guest did not hear is repeated by the kernel only after a second, so further sockets try
#: after these seconds; the first that connects wins.
HEDGES = (0.0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)


def path_of(name: str) -> Path:
    """Return the file that holds the namespace open."""
    return DIRECTORY / name


def exists(name: str) -> bool:
    """Whether there is such a namespace on this host."""
    return path_of(name).exists()


def is_broken(name: str) -> bool:
    """Whether the file is no namespace: an `ip netns add` that was killed before its mount leaves a plain one."""
    return exists(name) and path_of(name).stat().st_dev == DIRECTORY.stat().st_dev


def names() -> list[str]:
    """Return all named namespaces of the host."""
    return sorted(entry.name for entry in DIRECTORY.iterdir()) if DIRECTORY.is_dir() else []


def harden(name: str) -> None:
    """Forward nothing, leave no IPv6, and answer ARP only for the link's own address.

    A new namespace copies the host's settings, and a host with a container engine forwards.
    """
    settings = {
        "ipv4/ip_forward": "0",
        "ipv4/conf/all/arp_ignore": "1",
        "ipv4/conf/all/rp_filter": "1",
        "ipv6/conf/all/disable_ipv6": "1",
        "ipv6/conf/default/disable_ipv6": "1",
    }
    with linux.network_namespace(path_of(name)):
        for setting, value in settings.items():
            with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
                Path("/proc/sys/net", setting).write_text(value)  # /proc/sys/net is that of the thread's namespace


def tcp_socket(name: str) -> socket.socket:
    """Make a non-blocking TCP socket that belongs to the namespace: 15 µs, so no thread is needed."""
    with linux.network_namespace(path_of(name)):
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


async def _connect(name: str, address: tuple[str, int], delay: float) -> socket.socket:
    await asyncio.sleep(delay)
    connection = tcp_socket(name)
    try:
        error = connection.connect_ex(address)
        if error not in (0, errno.EINPROGRESS):
            raise OSError(error, "connect")
        if error:
            await writable(connection.fileno())
            error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, "connect")
    except BaseException:
        connection.close()
        raise
    return connection


async def open_tcp(name: str, host: str, port: int, *, timeout: float = 1.0) -> SocketStream:
    """Connect to an IPv4 address from inside the namespace `name`.

    Raises:
        TimeoutError: nothing answered in `timeout` seconds.
        OSError: refused (`ConnectionRefusedError`, at once), unreachable, or there is no such namespace.
    """
    attempts = {asyncio.ensure_future(_connect(name, (host, port), delay)) for delay in HEDGES if delay < timeout}
    try:
        done, _ = await asyncio.wait(attempts, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise TimeoutError(f"nothing answered at {host}:{port} in {timeout} s")
        winner = done.pop()
        connection = winner.result()
        attempts.discard(winner)
        return SocketStream(connection)
    finally:
        for attempt in attempts:
            attempt.cancel()
        for result in await asyncio.gather(*attempts, return_exceptions=True):
            if isinstance(result, socket.socket):
                result.close()

"""Dialling out of a namespace."""

import asyncio
import contextlib
import socket
import threading
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from space.host import linux, netns
from space.host.process import run

pytestmark = [pytest.mark.anyio, pytest.mark.root]


SILENCE = "table inet t {\n chain c {\n type filter hook input priority 0; policy drop;\n }\n }"


@pytest.fixture
async def namespace() -> AsyncIterator[str]:
    name = f"space-test-{uuid.uuid4().hex[:8]}"
    await run(["ip", "netns", "add", name])
    netns.harden(name)
    await run(["ip", "-n", name, "link", "set", "lo", "up"])
    yield name
    await run(["ip", "netns", "delete", name])


def listen(name: str, backlog: int = 8) -> socket.socket:
    with linux.network_namespace(netns.path_of(name)):
        return socket.create_server(("127.0.0.1", 0), backlog=backlog)


async def test_a_connection_is_made_inside_the_namespace(namespace: str) -> None:
    with listen(namespace) as server:
        stream = await netns.open_tcp(namespace, "127.0.0.1", server.getsockname()[1])
        accepted, _ = server.accept()
        await stream.send(b"hello")
        assert accepted.recv(5) == b"hello"
        accepted.close()
        assert await stream.receive() == b""
        await stream.aclose()


async def test_the_thread_is_back_in_its_own_namespace(namespace: str) -> None:
    before = Path("/proc/thread-self/ns/net").readlink()
    with pytest.raises(ConnectionRefusedError):
        await netns.open_tcp(namespace, "127.0.0.1", 1)
    assert Path("/proc/thread-self/ns/net").readlink() == before


async def test_a_port_of_the_host_cannot_be_reached_from_the_namespace(namespace: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ConnectionRefusedError):
        await netns.open_tcp(namespace, "127.0.0.1", server.getsockname()[1])


async def test_refusal_is_told_at_once(namespace: str) -> None:
    async with asyncio.timeout(0.5):
        with pytest.raises(ConnectionRefusedError):
            await netns.open_tcp(namespace, "127.0.0.1", 1, timeout=5)


async def test_silence_ends_in_time(namespace: str) -> None:
    await run(["nft", SILENCE], netns=namespace)
    async with asyncio.timeout(2):
        with pytest.raises(TimeoutError):
            await netns.open_tcp(namespace, "127.0.0.1", 80, timeout=0.2)


async def test_a_guest_that_comes_up_late_is_reached_without_the_kernels_second(namespace: str) -> None:
    await run(["nft", SILENCE], netns=namespace)
    with listen(namespace) as server:
        dialling = asyncio.ensure_future(netns.open_tcp(namespace, "127.0.0.1", server.getsockname()[1], timeout=3))
        await asyncio.sleep(0.05)
        await run(["nft", "delete table inet t"], netns=namespace)
        async with asyncio.timeout(0.6):
            stream = await dialling
        await stream.aclose()


async def test_no_socket_is_left_by_the_attempts_that_lost(namespace: str) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        with contextlib.suppress(OSError):
            await netns.open_tcp(namespace, "127.0.0.1", 1)
        with listen(namespace) as server:
            await (await netns.open_tcp(namespace, "127.0.0.1", server.getsockname()[1])).aclose()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1  # epoll


async def test_a_cancelled_dial_leaves_no_socket(namespace: str) -> None:
    await run(["nft", SILENCE], netns=namespace)
    before = len(list(Path("/proc/self/fd").iterdir()))
    dialling = asyncio.ensure_future(netns.open_tcp(namespace, "127.0.0.1", 80, timeout=5))
    await asyncio.sleep(0.05)
    dialling.cancel()
    await asyncio.gather(dialling, return_exceptions=True)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_a_namespace_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        await netns.open_tcp("space-no-such", "127.0.0.1", 1)


async def test_a_hardened_namespace_forwards_nothing_and_has_no_ipv6(namespace: str) -> None:
    with linux.network_namespace(netns.path_of(namespace)):
        assert Path("/proc/sys/net/ipv4/ip_forward").read_text() == "0\n"
        assert Path("/proc/thread-self/net/if_inet6").read_text() == ""


def test_only_the_calling_thread_changes_namespace() -> None:
    own = Path("/proc/self/ns/net").readlink()
    seen: list[Path] = []

    def enter() -> None:
        linux.unshare(linux.CLONE_NEWNET)
        seen.append(Path("/proc/thread-self/ns/net").readlink())

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen[0] != own
    assert Path("/proc/self/ns/net").readlink() == own

"""Connections of a namespace are ended from outside; those of others are not."""

import socket
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from space.host import linux, netns
from space.host.connections import Connections
from space.host.process import run

pytestmark = [pytest.mark.anyio, pytest.mark.root]


@pytest.fixture
async def namespace() -> AsyncIterator[str]:
    name = f"space-test-{uuid.uuid4().hex[:8]}"
    await run(["ip", "netns", "add", name])
    await run(["ip", "-n", name, "link", "set", "lo", "up"])
    yield name
    await run(["ip", "netns", "del", name])


@pytest.fixture
def connected(namespace: str) -> Iterator:
    made: list[socket.socket] = []

    def connect(address: str) -> tuple[socket.socket, socket.socket]:
        with linux.network_namespace(netns.path_of(namespace)):
            server = socket.create_server((address, 0))
            client = socket.create_connection(server.getsockname())
        made.extend((server, client, accepted := server.accept()[0]))
        return client, accepted

    yield connect
    for each in made:
        each.close()


async def test_connections_with_one_address_end_and_no_others(namespace: str, connected) -> None:
    gone = [connected("127.0.0.2") for _ in range(3)]
    kept, other_end = connected("127.0.0.3")
    connections = Connections(namespace, "127.0.0.2")
    assert connections.reset() >= 3  # seen from the client's end, and from the server's if it has that address too
    assert connections.reset() == 0
    connections.close()
    for client, accepted in gone:
        for end in (client, accepted):
            with pytest.raises(ConnectionError):
                end.send(b"x")
    kept.send(b"still")
    assert other_end.recv(10) == b"still"


async def test_listeners_stay(namespace: str) -> None:
    with linux.network_namespace(netns.path_of(namespace)):
        server = socket.create_server(("127.0.0.2", 0))
    connections = Connections(namespace, "127.0.0.2")
    assert connections.reset() == 0
    connections.close()
    with linux.network_namespace(netns.path_of(namespace)):
        client = socket.create_connection(server.getsockname())
    client.close()
    server.close()


async def test_two_hundred_connections_end_at_once(namespace: str, connected) -> None:
    pairs = [connected("127.0.0.2") for _ in range(200)]
    connections = Connections(namespace, "127.0.0.2")
    connections.reset()
    connections.close()
    for client, _ in pairs:
        with pytest.raises(ConnectionError):
            client.send(b"x")

"""Sockets as byte streams: whole, held back, quick, and fair to other tasks."""

import asyncio
import socket
import time

import pytest

from space.host.stream import SocketStream

pytestmark = pytest.mark.anyio


def pair() -> tuple[SocketStream, SocketStream]:
    one, other = socket.socketpair()
    return SocketStream(one), SocketStream(other)


async def test_bytes_arrive_whole_and_in_order() -> None:
    near, far = pair()
    data = bytes(range(256)) * 20_000
    sending = asyncio.ensure_future(near.send(data))
    received = b""
    while len(received) < len(data):
        received += await far.receive()
    await sending
    assert received == data
    await near.aclose()
    assert await far.receive() == b""
    await far.aclose()


async def test_receive_gives_no_more_than_asked_for() -> None:
    near, far = pair()
    await near.send(b"abcdef")
    assert await far.receive(4) == b"abcd"
    assert await far.receive(4) == b"ef"
    await near.aclose()
    await far.aclose()


async def test_a_sender_waits_while_nobody_reads() -> None:
    near, far = pair()
    sending = asyncio.ensure_future(near.send(bytes(16 << 20)))
    await asyncio.sleep(0.05)
    assert not sending.done()
    await far.aclose()
    with pytest.raises(ConnectionError):
        await sending
    await near.aclose()


async def test_closing_ends_a_pending_receive() -> None:
    near, far = pair()
    receiving = asyncio.ensure_future(near.receive())
    await asyncio.sleep(0.01)
    await near.aclose()
    async with asyncio.timeout(1):
        assert await receiving == b""
    assert await near.receive() == b""
    await near.aclose()
    await far.aclose()


async def test_a_stream_that_was_closed_cannot_be_used() -> None:
    near, far = pair()
    await near.aclose()
    with pytest.raises(ConnectionError):
        await near.send(b"x")
    await far.aclose()


async def test_one_task_receives_while_another_sends() -> None:
    near, far = pair()

    async def echo() -> None:
        while data := await far.receive():
            await far.send(data)

    echoing = asyncio.ensure_future(echo())
    sending = asyncio.ensure_future(near.send(bytes(4 << 20)))
    received = 0
    while received < 4 << 20:
        received += len(await near.receive())
    await sending
    await near.aclose()
    await echoing
    await far.aclose()


async def test_a_flood_does_not_starve_other_tasks() -> None:
    near, far = pair()

    async def flood() -> None:
        block = bytes(65536)
        while True:
            await near.send(block)

    async def drain() -> None:
        while await far.receive():
            pass

    tasks = [asyncio.ensure_future(flood()), asyncio.ensure_future(drain())]
    turns = 0
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        await asyncio.sleep(0)
        turns += 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert turns > 50
    await near.aclose()
    await far.aclose()

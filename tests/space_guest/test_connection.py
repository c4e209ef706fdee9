"""Connections to a real agent: strangers, breaks at any point, output that nobody takes."""

import asyncio
import hashlib
import os
import random
import socket

import pytest

from space.core.command import CommandSpec
from space.core.errors import FailedPrecondition, GuestUnreachable, NotFound
from space.node.guest import Guest
from space_guest.handshake import NodeHandshake
from space_guest.protocol import HEADER, Kind, encode, encode_ack, encode_data, encode_object, encode_offset

pytestmark = [pytest.mark.anyio, pytest.mark.live]
TOKEN = "a token of this test only"


async def test_a_wrong_token_gets_nothing(agent, session):
    with pytest.raises(GuestUnreachable, match="token"):
        await Guest.open(await agent.connect(), token="not the token at all", deliver=session.recorder.deliver)
    stream = await agent.connect()
    handshake = NodeHandshake(TOKEN)
    await stream.send(handshake.hello())
    await stream.receive()
    await stream.send(encode(Kind.PROOF, 0, bytes(32)))
    assert await stream.receive() == b""
    assert await session.guest.ping() < 5


async def test_strangers_cannot_keep_the_node_out(agent, session):
    """Programs of the guest can connect; the agent keeps few of them, and none for long."""
    strangers = [socket.create_connection(("127.0.0.1", agent.port)) for _ in range(200)]
    try:
        assert await session.guest.ping() < 5
        other = await Guest.open(await agent.connect(), token=TOKEN, deliver=session.recorder.deliver)
        await other.aclose()
    finally:
        for stranger in strangers:
            stranger.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        os.urandom(5000),
        HEADER.pack(Kind.HELLO, 0, 2**32 - 1),
        HEADER.pack(Kind.REQUEST, 1, 2),
        encode(Kind.HELLO, 0, b"SPACEagt\xff\xff" + bytes(32)),
    ],
)
async def test_nonsense_before_authentication_closes_the_connection(agent, session, data):
    stream = await agent.connect()
    await stream.send(data)
    assert await stream.receive() == b""
    assert await session.guest.ping() < 5


@pytest.mark.parametrize(
    "frames",
    [
        [encode_object(Kind.REQUEST, 1, {"op": "ping"})] * 2,
        [encode_data(9, 0, b"x")],
        [encode_object(Kind.REQUEST, 1, {"op": "write", "path": "/tmp/x"}), encode_data(1, 5, b"x")],
        [encode_object(Kind.REQUEST, 1, {"op": "write", "path": "/tmp/x"}), encode_offset(Kind.END, 1, 5)],
        [
            encode_object(Kind.REQUEST, 1, {"op": "spawn", "process_id": "p", "argv": ["sleep", "9"], "env": {}}),
            encode_ack(1, 1, 1 << 40),
        ],
        [
            encode_object(Kind.REQUEST, 1, {"op": "spawn", "process_id": "p", "argv": ["sleep", "9"], "stdin": True}),
            encode_data(1, 7, b"x"),
        ],
        [encode(Kind.REQUEST, 1, b"[]")],
    ],
)
async def test_a_node_that_breaks_the_protocol_is_hung_up_on(agent, frames):
    guest = await Guest.open(await agent.connect(), token=TOKEN, deliver=None)
    await guest._stream.send(b"".join(frames))
    async with asyncio.timeout(10):
        while await guest._stream.receive():
            pass
    await guest.aclose()
    other = await Guest.open(await agent.connect(), token=TOKEN, deliver=None)
    await other.aclose()


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"op": 7},
        {"op": "nope"},
        {"op": "spawn"},
        {"op": "spawn", "process_id": "p", "argv": []},
        {"op": "spawn", "process_id": "p", "argv": "true"},
        {"op": "spawn", "process_id": "p", "argv": ["true"], "env": []},
        {"op": "spawn", "process_id": "p", "argv": ["true"], "env": {"A=": "x"}},
        {"op": "spawn", "process_id": "p", "argv": ["a\0b"]},
        {"op": "spawn", "process_id": "p", "argv": ["true"], "pty": [0, 70000]},
        {"op": "spawn", "process_id": "p", "argv": ["true"], "timeout": -1},
        {"op": "spawn", "process_id": "p", "argv": ["true"], "offsets": {"stdout": "x"}},
        {"op": "spawn", "process_id": "p", "argv": ["true"], "offsets": {"nope": 5}},
        {"op": "attach", "process_id": "nope"},
        {"op": "signal", "process_id": "nope", "signal": "SIGTERM"},
        {"op": "read", "path": 7},
        {"op": "read", "path": "/etc/passwd", "start": -1},
        {"op": "list", "path": "/", "depth": 0, "limit": 0},
        {"op": "write", "path": "/tmp/x", "mode": "x"},
        {"op": "add_entropy", "hex": "xyz"},
        {"op": "set_clock", "unix_seconds": "now"},
    ],
)
async def test_a_request_that_makes_no_sense_gets_an_answer_and_no_harm_is_done(session, request_):
    op = request_.pop("op", "")
    with pytest.raises((Exception,)) as caught:
        await session.guest._call(op, request_)
    assert not isinstance(caught.value, GuestUnreachable), caught.value
    assert await session.guest.ping() < 5


async def test_a_new_connection_replaces_the_old_one(session):
    old = session.guest
    async with session.connected() as new:
        assert await new.ping() < 5
        with pytest.raises(GuestUnreachable):
            await old.ping()


async def test_processes_survive_a_break_and_their_exit_is_told_afterwards(session):
    process_id = await session.start("sh", "-c", "sleep 0.3; echo after; exit 4")
    await session.guest.aclose()
    await asyncio.sleep(0.6)
    async with session.connected() as guest:
        assert [status.process_id for status in await guest.processes()] == [process_id]
        await guest.attach(process_id, offsets={})
        assert (await session.recorder.exit(process_id)).exit_code == 4
    assert session.recorder.text(process_id) == b"after\n"


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_lost_or_doubled_however_often_the_connection_breaks(session, seed):
    """Breaks after a random number of bytes, in the middle of frames and of deliveries."""
    chance = random.Random(seed)
    script = "i=0; while [ $i -lt 2000 ]; do echo $i; [ $((i % 7)) = 0 ] && echo e$i >&2; i=$((i+1)); done; exit 5"
    process_id = await session.start("sh", "-c", script)
    await session.guest.aclose()
    exit_ = asyncio.ensure_future(session.recorder.exit(process_id))
    for _ in range(200):
        stream = _Breaking(await session.agent.connect(), chance.randrange(300, 12_000))
        try:
            guest = await Guest.open(stream, token=TOKEN, deliver=session.recorder.deliver)
            task = asyncio.create_task(guest.run())
            try:
                await guest.attach(process_id, offsets=session.recorder.offsets(process_id))
                await asyncio.wait({task, exit_}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        except (GuestUnreachable, NotFound):
            pass
        if process_id in session.recorder.exits:
            break
    assert (await asyncio.wait_for(exit_, 1)).exit_code == 5
    assert session.recorder.text(process_id) == b"".join(b"%d\n" % number for number in range(2000))
    expected = b"".join(b"e%d\n" % number for number in range(0, 2000, 7))
    assert session.recorder.text(process_id, "stderr") == expected


class _Breaking:
    """A stream that breaks after so many received bytes."""

    def __init__(self, stream, budget: int) -> None:
        self._stream, self._budget = stream, budget

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self._budget <= 0:
            raise ConnectionResetError("broken on purpose")
        data = await self._stream.receive(min(max_bytes, self._budget, 700))
        self._budget -= len(data)
        return data

    async def send(self, data: bytes) -> None:
        await self._stream.send(data)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def test_output_from_before_the_acknowledged_offset_is_refused(session):
    process_id = await session.start("sh", "-c", "echo 0123456789; sleep 30")
    await session.recorder.until(lambda: session.recorder.text(process_id))
    await session.guest.ping()  # the acknowledgement went before it
    await session.guest.aclose()
    async with session.connected() as guest:
        for offset in (3, 99):
            with pytest.raises(FailedPrecondition):
                await guest.attach(process_id, offsets={"stdout": offset})
        await guest.attach(process_id, offsets={"stdout": 11})
        await guest.signal(process_id, "SIGKILL")
        await session.recorder.exit(process_id)


async def test_a_hundred_thousand_small_writes_arrive_in_order(session):
    script = "import os\nfor i in range(100_000): os.write(1, b'%d\\n' % i)"
    process_id = await session.start("python3", "-c", script)
    exited = await session.recorder.exit(process_id)
    assert exited.exit_code == 0
    digest = hashlib.sha256(b"".join(b"%d\n" % number for number in range(100_000))).digest()
    assert hashlib.sha256(session.recorder.text(process_id)).digest() == digest
    assert session.agent.resident_kib < 60_000


async def test_every_byte_value_arrives(session):
    process_id = await session.start("python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 300)")
    await session.recorder.exit(process_id)
    assert session.recorder.text(process_id) == bytes(range(256)) * 300


async def test_output_that_nobody_takes_stops_its_process_and_no_other(session):
    """The journal cannot be written for a while: memory stays flat on both ends, the rest goes on."""
    size = 64 << 20
    session.recorder.gate.clear()
    process_id = await session.start("head", "-c", str(size), "/dev/zero")
    await asyncio.sleep(0.5)
    assert session.recorder.text(process_id) == b""
    assert session.agent.resident_kib < 60_000
    assert await session.guest.ping() < 5
    session.recorder.gate.set()
    exited = await session.recorder.exit(process_id)
    assert (exited.exit_code, exited.stdout_bytes) == (0, size)
    assert session.recorder.text(process_id) == bytes(size)


async def test_a_guest_that_is_not_read_keeps_little(session, agent):
    """A gigabyte with no reader: without a connection the process stands still at the window."""
    process_id = await session.start("head", "-c", str(1 << 30), "/dev/zero")
    await session.guest.aclose()
    await asyncio.sleep(0.5)
    assert agent.resident_kib < 60_000
    async with session.connected() as guest:
        offsets = session.recorder.offsets(process_id)
        await guest.attach(process_id, offsets=offsets)
        await guest.signal(process_id, "SIGKILL")
        await session.recorder.exit(process_id)


async def test_many_silent_readers_share_a_budget(session, agent):
    session.recorder.gate.clear()
    ids = [await session.start("head", "-c", "2000000", "/dev/zero") for _ in range(40)]
    await asyncio.sleep(1)
    assert agent.resident_kib < 120_000
    session.recorder.gate.set()
    for process_id in ids:
        assert (await session.recorder.exit(process_id)).stdout_bytes == 2_000_000


async def test_a_start_whose_answer_was_lost_is_found_again(session, tmp_path):
    process_id = session.next_id()
    spec = CommandSpec(argv=("sh", "-c", f"echo once >> {tmp_path}/count; echo out; sleep 0.2"))
    task = asyncio.create_task(session.guest.spawn(process_id, spec, env={}, default_user="root"))
    await asyncio.sleep(0)
    await session.guest.aclose()
    with pytest.raises(GuestUnreachable):
        await task
    async with session.connected() as guest:
        await guest.spawn(process_id, spec, env={}, default_user="root", offsets=session.recorder.offsets(process_id))
        await session.recorder.exit(process_id)
    assert (tmp_path / "count").read_text() == "once\n"
    assert session.recorder.text(process_id) == b"out\n"


async def test_a_personalised_machine_takes_the_new_token_only(session):
    before = session.guest.boot_id
    await session.guest.personalise(token="another token, after a restore")
    with pytest.raises(GuestUnreachable):
        await Guest.open(await session.agent.connect(), token=TOKEN, deliver=session.recorder.deliver)
    stream = await session.agent.connect()
    guest = await Guest.open(stream, token="another token, after a restore", deliver=session.recorder.deliver)
    assert guest.boot_id == session.guest.boot_id != before
    await guest.aclose()

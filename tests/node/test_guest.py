"""Guests that lie: whatever an agent with the right token says, the node stays right and small."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from space.core.command import CommandSpec
from space.core.errors import GuestUnreachable, SpaceError
from space.core.ids import ProcessId
from space.node.guest import Exited, Guest, Output, SpawnFailed
from space.node.guest_connection import HIGH_WATER
from space.node.guest_errors import guest_error, printable
from space.testing.runtime import memory_streams
from space_guest.handshake import AgentHandshake
from space_guest.protocol import (
    CHUNK,
    FILE_WINDOW,
    FROM_AGENT,
    HEADER,
    OUTPUT_WINDOW,
    PTY,
    SIZES,
    STDERR,
    STDOUT,
    Decoder,
    Kind,
    encode,
    encode_data,
    encode_object,
    encode_offset,
    encode_output,
)

pytestmark = [pytest.mark.anyio, pytest.mark.live]
TOKEN = "the token of this machine"
PRC = ProcessId("prc1")
STARTED = {"os_pid": 7, "stdin_offset": 0, "stdin": True}
ENDED = {"exit_code": 0, "signal": None, "reason": None, "offsets": {"stdout": 0, "stderr": 0}}


class Liar:
    """The agent's end, by hand: answers each request with the frames that a test wants."""

    def __init__(self) -> None:
        self.stream, self.far = memory_streams()
        self.events: list[Output | Exited] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def deliver(self, event: Output | Exited) -> None:
        await self.gate.wait()
        self.events.append(event)

    async def greet(self) -> None:
        handshake = AgentHandshake(TOKEN)
        decoder = Decoder(frozenset(Kind))
        (_, _, hello), *_ = decoder.feed(await self.far.receive())
        await self.far.send(handshake.challenge(hello))
        (_, _, proof), *_ = decoder.feed(await self.far.receive())
        handshake.verify(proof)
        await self.far.send(encode_object(Kind.WELCOME, 0, {"version": 1, "boot_id": "x"}))

    async def answer(self, *frames: bytes) -> None:
        """Wait for a request, then send `frames`."""
        await self.far.receive()
        await self.far.send(b"".join(frames))


@contextlib.asynccontextmanager
async def lying() -> AsyncIterator[tuple[Liar, Guest, "asyncio.Task[None]"]]:
    liar = Liar()
    greeting = asyncio.create_task(liar.greet())
    guest = await Guest.open(liar.stream, token=TOKEN, deliver=liar.deliver)
    await greeting
    task = asyncio.create_task(guest.run())
    try:
        yield liar, guest, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def spawn(liar: Liar, guest: Guest, *frames: bytes) -> int:
    answering = asyncio.create_task(liar.answer(*frames))
    try:
        return await guest.spawn(PRC, CommandSpec(argv=("x",), stdin=True), env={}, default_user="user")
    finally:
        await answering


def started() -> bytes:
    return encode_object(Kind.STARTED, 1, STARTED)


@pytest.mark.parametrize(
    "frames",
    [
        [encode_output(1, STDOUT, 5, b"x")],
        [encode_output(1, STDOUT, 0, b"x"), encode_output(1, STDOUT, 0, b"x")],
        [encode_output(1, STDOUT, 2**64 - 1, b"x")],
        [encode_output(1, PTY, 0, b"x")],
        [encode(Kind.OUTPUT, 1, b"\x09" + bytes(8) + b"x")],
        [encode_output(2, STDOUT, 0, b"x")],
        [encode_object(Kind.EXITED, 1, ENDED), encode_output(1, STDOUT, 0, b"late")],
        [encode_object(Kind.EXITED, 1, ENDED), encode_object(Kind.EXITED, 1, ENDED)],
        [encode_object(Kind.EXITED, 1, ENDED | {"offsets": {"stdout": 1, "stderr": 0}})],
        [encode_object(Kind.EXITED, 1, ENDED | {"offsets": {"stdout": 0, "nope": 0}})],
        [encode_object(Kind.EXITED, 1, ENDED | {"offsets": []})],
        [encode_object(Kind.EXITED, 1, ENDED | {"exit_code": -1})],
        [encode_object(Kind.EXITED, 1, ENDED | {"exit_code": 256})],
        [encode_object(Kind.EXITED, 1, ENDED | {"exit_code": True})],
        [encode_object(Kind.EXITED, 1, ENDED | {"exit_code": None})],
        [encode_object(Kind.EXITED, 1, ENDED | {"signal": "SIGKILL"})],
        [encode_object(Kind.EXITED, 1, ENDED | {"exit_code": None, "signal": "\x1b[31m"})],
        [encode_object(Kind.EXITED, 1, ENDED | {"reason": []})],
        [encode_object(Kind.EXITED, 1, ENDED | {"reason": "because"})],
        [encode_object(Kind.STARTED, 1, STARTED)],
        [encode_object(Kind.REPLY, 1, {})],
        [encode_object(Kind.OPENED, 1, {})],
        [encode_data(1, 0, b"x")],
        [encode_offset(Kind.CREDIT, 1, 2**60)],
        [encode(Kind.EXITED, 1, b"[1]")],
        [HEADER.pack(Kind.OUTPUT, 1, 2**32 - 1)],
        [HEADER.pack(99, 1, 1)],
        [encode(Kind.REQUEST, 1, b"{}")],
        [encode_output(1, STDOUT, n * CHUNK, bytes(CHUNK)) for n in range(OUTPUT_WINDOW // CHUNK + 1)],
    ],
)
async def test_an_agent_that_breaks_the_protocol_is_hung_up_on(frames):
    async with lying() as (liar, guest, task):
        liar.gate.clear()  # so that nothing is acknowledged
        assert await spawn(liar, guest, started(), *frames) == 7
        with pytest.raises(GuestUnreachable, match="protocol"):
            await asyncio.wait_for(asyncio.shield(task), 5)
        with pytest.raises(GuestUnreachable):
            await guest.ping()
        with pytest.raises((SpaceError,)):
            await guest.write_stdin(PRC, b"x")


@pytest.mark.parametrize(
    "body",
    [{}, {"os_pid": -1, "stdin_offset": 0}, {"os_pid": "7", "stdin_offset": 0}, {"os_pid": 7, "stdin_offset": 2**70}],
)
async def test_a_start_that_makes_no_sense_is_no_start(body):
    async with lying() as (liar, guest, _):
        with pytest.raises(GuestUnreachable):
            await spawn(liar, guest, encode_object(Kind.STARTED, 1, body))


async def test_what_came_before_the_lie_is_delivered_and_right():
    async with lying() as (liar, guest, task):
        frames = [
            encode_output(1, STDOUT, 0, b"abc"),
            encode_output(1, STDERR, 0, b"d"),
            encode_output(1, STDOUT, 3, b"ef"),
        ]
        await spawn(liar, guest, started(), *frames)
        await guest._stream.send(b"")
        for _ in range(20):
            await asyncio.sleep(0)
        await liar.far.send(encode_output(1, STDOUT, 99, b"lie"))
        await asyncio.gather(task, return_exceptions=True)
        assert liar.events == [
            Output(PRC, "stdout", 0, b"abc"),
            Output(PRC, "stderr", 0, b"d"),
            Output(PRC, "stdout", 3, b"ef"),
        ]


async def test_alternating_single_bytes_cost_no_more_than_they_hold():
    async with lying() as (liar, guest, _):
        liar.gate.clear()
        await spawn(liar, guest, started())
        for number in range(20_000):
            await liar.far.send(encode_output(1, STDOUT, number, b"o") + encode_output(1, STDERR, number, b"e"))
        await asyncio.sleep(0.05)
        channel = guest._processes[PRC]
        assert len(channel._pieces) <= 1024
        liar.gate.set()
        await asyncio.sleep(0.2)
        for stream, byte in (("stdout", b"o"), ("stderr", b"e")):
            parts = [event for event in liar.events if isinstance(event, Output) and event.stream == stream]
            assert b"".join(part.data for part in parts) == byte * 20_000
            assert [part.offset for part in parts[1:]] == [part.offset + len(part.data) for part in parts[:-1]]


@pytest.mark.parametrize(
    ("body", "code"),
    [({"code": "spawn_failed", "exit_code": 127}, 127), ({"code": "spawn_failed", "exit_code": "x"}, 126)],
)
async def test_a_refused_start_is_a_failed_spawn(body, code):
    async with lying() as (liar, guest, _):
        with pytest.raises(SpawnFailed) as caught:
            await spawn(liar, guest, encode_object(Kind.ERROR, 1, body))
        assert caught.value.exit_code == code


FILE = {
    "path": "/a",
    "type": "file",
    "size": 4,
    "mode": 0o644,
    "user": "u",
    "group": "g",
    "modified_ns": 0,
    "target": None,
    "etag": "e",
}


@pytest.mark.parametrize(
    "change",
    [
        {"size": -1},
        {"size": 2**64},
        {"size": "4"},
        {"type": "door"},
        {"type": []},
        {"mode": 0o77777},
        {"path": "x" * 5000},
        {"user": None},
        {"modified_ns": 2**63 - 1},
        {"target": 5},
    ],
)
async def test_files_that_cannot_be_are_not_believed(change):
    async with lying() as (liar, guest, _):
        answering = asyncio.create_task(liar.answer(encode_object(Kind.REPLY, 1, FILE | change)))
        with pytest.raises(GuestUnreachable):
            await guest.stat_file("/a")
        await answering


@pytest.mark.parametrize(
    "frames",
    [
        [encode_data(1, 0, b"12345"), encode_offset(Kind.END, 1, 5), encode_object(Kind.REPLY, 1, {})],
        [encode_data(1, 0, b"123"), encode_offset(Kind.END, 1, 3), encode_object(Kind.REPLY, 1, {})],
        [encode_data(1, 0, b"12"), encode_data(1, 0, b"34")],
        [encode_data(1, 0, b"1234"), encode_offset(Kind.END, 1, 9)],
        [encode_data(1, 0, b"1234"), encode_object(Kind.REPLY, 1, {})],
        [encode_object(Kind.OPENED, 1, FILE)],
        [encode_object(Kind.ERROR, 1, {"code": "failed_precondition"})],
        [encode_data(1, n * CHUNK, bytes(CHUNK)) for n in range(5)],
        [],
    ],
)
async def test_a_file_is_never_shorter_or_longer_than_it_says(frames):
    async with lying() as (liar, guest, task):
        answering = asyncio.create_task(liar.answer(encode_object(Kind.OPENED, 1, FILE), *frames))
        with pytest.raises((SpaceError,)):  # noqa: PT012 - anywhere on the way
            async with guest.read_file("/a") as (info, chunks):
                await answering
                assert info.size == 4
                if not frames:
                    await liar.far.aclose()
                async for _ in chunks:
                    pass
        await answering
        assert task


@pytest.mark.parametrize("line", [b"{", b"[]\n", b"x" * 100_000, json.dumps({"path": "/a"}).encode() + b"\n", b"{}"])
async def test_lists_that_make_no_sense_are_refused(line):
    async with lying() as (liar, guest, _):
        frames = [encode_data(1, 0, line), encode_offset(Kind.END, 1, len(line)), encode_object(Kind.REPLY, 1, {})]
        answering = asyncio.create_task(liar.answer(*frames))
        with pytest.raises(GuestUnreachable):
            await guest.list_files("/a")
        await answering


async def test_a_list_longer_than_asked_for_is_refused():
    async with lying() as (liar, guest, _):
        lines = (json.dumps(FILE).encode() + b"\n") * 3
        frames = [encode_data(1, 0, lines), encode_offset(Kind.END, 1, len(lines)), encode_object(Kind.REPLY, 1, {})]
        answering = asyncio.create_task(liar.answer(*frames))
        with pytest.raises(GuestUnreachable):
            await guest.list_files("/a", limit=2)
        await answering


async def test_an_upload_ends_as_soon_as_the_agent_refuses():
    async with lying() as (liar, guest, _):

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield bytes(1000)

        answering = asyncio.create_task(liar.answer(encode_object(Kind.ERROR, 1, {"code": "insufficient_storage"})))
        with pytest.raises(SpaceError) as caught:
            await guest.write_file("/a", endless())
        assert caught.value.code == "insufficient_storage"
        await answering


async def test_output_of_many_processes_at_once_fills_no_memory(monkeypatch):
    monkeypatch.setattr("space.node.guest_connection.MAX_UNDELIVERED", 4 * OUTPUT_WINDOW)
    async with lying() as (liar, guest, task):
        liar.gate.clear()
        starts = []
        for number in range(1, 9):
            order = guest.spawn(ProcessId(f"prc{number}"), CommandSpec(argv=("x",)), env={}, default_user="user")
            starts.append(asyncio.create_task(order))
        await asyncio.sleep(0)
        answers = b"".join(encode_object(Kind.STARTED, number, STARTED) for number in range(1, 9))
        await liar.answer(answers)
        await asyncio.gather(*starts)
        with contextlib.suppress(ConnectionError):
            for number in range(1, 9):
                for offset in range(0, OUTPUT_WINDOW, CHUNK):
                    await liar.far.send(encode_output(number, STDOUT, offset, bytes(CHUNK)))
        liar.gate.set()
        with pytest.raises(GuestUnreachable, match="more output at once"):
            await asyncio.wait_for(task, 10)


async def test_output_that_was_written_down_counts_no_more(monkeypatch):
    monkeypatch.setattr("space.node.guest_connection.MAX_UNDELIVERED", 2 * CHUNK)
    async with lying() as (liar, guest, _):
        await spawn(liar, guest, started())
        for number in range(20):
            await liar.far.send(encode_output(1, STDOUT, number * CHUNK, bytes(CHUNK)))
            await asyncio.sleep(0.01)
        assert sum(len(event.data) for event in liar.events if isinstance(event, Output)) == 20 * CHUNK
        assert guest._undelivered == 0


async def test_credit_from_an_agent_that_reads_nothing_fills_no_memory():
    async with lying() as (liar, guest, _):
        taken = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal taken
            while True:
                taken += CHUNK
                yield bytes(CHUNK)

        upload = asyncio.create_task(guest.write_file("/a", endless()))
        await liar.far.receive()
        for _ in range(1000):
            await liar.far.send(encode_offset(Kind.CREDIT, 1, guest._channels[1]._sent + FILE_WINDOW))
            await asyncio.sleep(0)
        assert 0 < taken <= HIGH_WATER + 2 * CHUNK
        upload.cancel()
        await asyncio.gather(upload, return_exceptions=True)


async def test_an_agent_that_lets_its_acknowledgements_pile_up_is_hung_up_on(monkeypatch):
    monkeypatch.setattr("space.node.guest_connection.MAX_UNREAD", 400_000)
    async with lying() as (liar, guest, task):
        await spawn(liar, guest, started())
        for number in range(100_000):
            if task.done():
                break
            await liar.far.send(encode_output(1, STDOUT, number, b"x"))
            await asyncio.sleep(0)
        with pytest.raises(GuestUnreachable, match="does not read"):
            await asyncio.wait_for(task, 10)
        assert guest._unsent <= 400_100


async def test_bytes_that_waited_for_an_agent_to_read_arrive_once_it_does():
    async with lying() as (liar, guest, _):
        content = b"".join(bytes([number % 251]) * CHUNK for number in range(40))

        async def source() -> AsyncIterator[bytes]:
            yield content

        upload = asyncio.create_task(guest.write_file("/a", source()))
        decoder, received, ended = Decoder(frozenset(Kind)), b"", False
        while not ended:
            for kind, _, payload in decoder.feed(await asyncio.wait_for(liar.far.receive(1 << 20), 10)):
                if kind is Kind.DATA:
                    received += payload[8:]
                    await liar.far.send(encode_offset(Kind.CREDIT, 1, len(received) + FILE_WINDOW))
                ended = ended or kind is Kind.END
        assert received == content
        upload.cancel()
        await asyncio.gather(upload, return_exceptions=True)


@given(st.lists(st.tuples(st.sampled_from(sorted(FROM_AGENT)), st.integers(0, 3), st.binary(max_size=60)), max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_sequence_of_frames_does_more_than_end_the_connection(frames):
    async def scenario() -> None:
        async with lying() as (liar, guest, task):
            await spawn(liar, guest, started())
            answers = [asyncio.create_task(guest.ping(seconds=0.2)), asyncio.create_task(guest.stat_file("/a"))]
            for kind, channel, payload in frames:
                least, most = SIZES[Kind(kind)]
                await liar.far.send(encode(Kind(kind), channel, payload.ljust(least, b"{")[: most or None]))
            await liar.far.aclose()
            for result in await asyncio.gather(task, *answers, return_exceptions=True):
                assert isinstance(result, SpaceError | float | SpawnFailed | TimeoutError), result

    asyncio.run(scenario())


async def test_measurements_have_plain_names_and_possible_values():
    async with lying() as (liar, guest, _):
        said = '{"pids":3,"cpu_seconds":0.5,"\\ud800":1,"\\u001b[2J":1,"A b":1,"%s":1,"neg":-1,"inf":1e999,"on":true}'
        payload = (said % ("x" * 65)).encode()
        answering = asyncio.create_task(liar.answer(encode(Kind.REPLY, 1, payload)))
        assert await guest.stats() == {"pids": 3.0, "cpu_seconds": 0.5}
        await answering


def test_errors_of_an_agent_are_typed_and_their_words_harmless():
    error = guest_error({"code": "not_found", "errno": 2, "message": "\x1b[31mlies"}, "/a/b")
    assert (type(error).__name__, str(error)) == ("NotFound", "/a/b: no such file or directory")
    for code in (None, [], "internal", "nope", 5):
        assert isinstance(guest_error({"code": code}, ""), GuestUnreachable)
    assert printable("a\x1b\n" + "b" * 9999) == "a??" + "b" * 497
    assert printable(["x"]) == ""


async def test_an_agent_without_the_token_is_not_believed():
    near, far = memory_streams()

    async def impostor() -> None:
        (_, _, hello), *_ = Decoder(frozenset(Kind)).feed(await far.receive())
        await far.send(AgentHandshake("not the token").challenge(hello))

    task = asyncio.create_task(impostor())
    with pytest.raises(GuestUnreachable, match="token"):
        await Guest.open(near, token=TOKEN, deliver=Liar().deliver)
    await task


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", encode_object(Kind.WELCOME, 0, {})])
async def test_what_is_no_agent_is_not_greeted(answer):
    near, far = memory_streams()

    async def other() -> None:
        await far.receive()
        if answer:
            await far.send(answer)
        await far.aclose()

    task = asyncio.create_task(other())
    with pytest.raises(GuestUnreachable):
        await Guest.open(near, token=TOKEN, deliver=Liar().deliver)
    await task

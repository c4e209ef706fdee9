"""The fake guest speaks the protocol as the real one does; the real one's tests are in tests/space_guest."""

import asyncio
import contextlib
import io
import tarfile
from collections.abc import AsyncIterator

import pytest

from space.core.command import CommandSpec, Pty
from space.core.errors import FailedPrecondition, GuestUnreachable, InsufficientStorage, InvalidRequest, NotFound
from space.core.ids import ProcessId
from space.node.guest import Exited, Guest, Output, SpawnFailed
from space.testing.guest import FakeGuest

pytestmark = pytest.mark.anyio
TOKEN = "the token of a fake machine"


class Node:
    """Keeps what a guest delivers."""

    def __init__(self) -> None:
        self.guest: Guest
        self.output: dict[tuple[str, str], bytes] = {}
        self.exits: dict[str, asyncio.Future[Exited]] = {}
        self.numbers = iter(range(1000))

    async def deliver(self, event: Output | Exited) -> None:
        if isinstance(event, Exited):
            self.exits.setdefault(event.process_id, asyncio.Future()).set_result(event)
        else:
            key = (event.process_id, event.stream)
            assert event.offset == len(self.output.get(key, b""))
            self.output[key] = self.output.get(key, b"") + event.data

    async def start(self, *argv: str, env: dict[str, str] | None = None, **options) -> ProcessId:
        process_id = ProcessId(f"prc{next(self.numbers)}")
        self.exits[process_id] = asyncio.Future()
        await self.guest.spawn(process_id, CommandSpec(argv=argv, **options), env=env or {}, default_user="user")
        return process_id

    async def run(self, *argv: str, **options) -> tuple[int | None, bytes, bytes]:
        process_id = await self.start(*argv, **options)
        exited = await asyncio.wait_for(self.exits[process_id], 30)
        assert exited.stdout_bytes == len(self.text(process_id)) + len(self.text(process_id, "pty"))
        return exited.exit_code, self.text(process_id), self.text(process_id, "stderr")

    def text(self, process_id: str, stream: str = "stdout") -> bytes:
        return self.output.get((process_id, stream), b"")


@contextlib.asynccontextmanager
async def connected(fake: FakeGuest, node: Node) -> AsyncIterator[Guest]:
    node.guest = await Guest.open(await fake.connect(), token=TOKEN, deliver=node.deliver)
    task = asyncio.create_task(node.guest.run())
    try:
        yield node.guest
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, GuestUnreachable):
            await task


@pytest.fixture
async def fake() -> AsyncIterator[FakeGuest]:
    guest = FakeGuest(token=TOKEN)
    yield guest
    await guest.aclose()


@pytest.fixture
async def node(fake: FakeGuest) -> AsyncIterator[Node]:
    node = Node()
    async with connected(fake, node):
        yield node


@pytest.mark.parametrize(
    ("script", "code", "stdout", "stderr"),
    [
        ("exit 7", 7, b"", b""),
        ("echo out; echo err >&2", 0, b"out\n", b"err\n"),
        ("false || echo no; true && echo yes", 0, b"no\nyes\n", b""),
        ("true && false && echo never", 1, b"", b""),
        ("for i in 1 2 3; do echo $i; done; echo end", 0, b"1\n2\n3\nend\n", b""),
        ("for i in $(seq 1 3); do echo $i; sleep 0.01; done", 0, b"1\n2\n3\n", b""),
        ("for i in a b\ndo for j in 1 2\ndo echo $i$j\ndone\ndone", 0, b"a1\na2\nb1\nb2\n", b""),
        ("echo '$HOME' \"$HOME\"", 0, b"$HOME /home/user\n", b""),
        ("A=1; echo ${A}$A", 0, b"11\n", b""),
        ("nope", 127, b"", b"sh: nope: not found\n"),
        ("false; echo $?", 0, b"1\n", b""),
        ("echo a | cat", 2, b"", b"sh: pipes, jobs and redirections are not known here\n"),
        ("for i in 1; do echo", 2, b"", b"sh: syntax error: for without do and done\n"),
    ],
)
async def test_the_shell_understands_what_tests_write(node, script, code, stdout, stderr):
    assert await node.run("sh", "-c", script) == (code, stdout, stderr)


async def test_programs_that_are_not_there_cannot_be_started(node):
    for options, code in (({}, 127), ({"user": "nobody-at-all"}, 126), ({"cwd": "/nope"}, 126)):
        with pytest.raises(SpawnFailed) as caught:
            await node.start("python3" if code == 127 else "true", **options)
        assert caught.value.exit_code == code


async def test_stdin_goes_to_cat_and_comes_back(node):
    process_id = await node.start("cat", stdin=True)
    for _ in range(5):
        await node.guest.write_stdin(process_id, b"x" * 100_000)
    await node.guest.close_stdin(process_id)
    assert (await node.exits[process_id]).exit_code == 0
    assert node.text(process_id) == b"x" * 500_000


async def test_timeouts_and_signals_end_programs(node):
    process_id = await node.start("sleep", "100", timeout_seconds=0.05)
    exited = await node.exits[process_id]
    assert (exited.signal, exited.reason) == ("SIGKILL", "timeout")
    process_id = await node.start("sleep", "100")
    await node.guest.signal(process_id, "SIGTERM")
    exited = await node.exits[process_id]
    assert (exited.signal, exited.reason) == ("SIGTERM", "killed")
    await node.guest.signal(process_id, "SIGTERM")


async def test_a_terminal_has_one_stream(node):
    process_id = await node.start("echo", "hi", pty=Pty(cols=80, rows=24))
    await node.exits[process_id]
    await node.guest.resize(process_id, Pty(cols=10, rows=10))
    assert node.output == {(process_id, "pty"): b"hi\r\n"}


async def test_output_without_end_stands_still_while_nobody_takes_it(node):
    process_id = await node.start("yes")
    await asyncio.sleep(0.05)
    await node.guest.signal(process_id, "SIGKILL")
    await node.exits[process_id]


async def test_programs_outlive_a_connection(fake):
    node = Node()
    async with connected(fake, node):
        process_id = await node.start("sh", "-c", "for i in $(seq 1 30); do echo $i; sleep 0.01; done")
        await asyncio.sleep(0.05)
    async with connected(fake, node):
        await node.guest.attach(process_id, offsets={"stdout": len(node.text(process_id))})
        assert (await asyncio.wait_for(node.exits[process_id], 10)).exit_code == 0
    assert node.text(process_id).split() == [b"%d" % number for number in range(1, 31)]


async def test_a_wrong_token_is_no_connection(fake):
    with pytest.raises(GuestUnreachable):
        await Guest.open(await fake.connect(), token="another token of a machine", deliver=Node().deliver)


async def _source(*blocks: bytes) -> AsyncIterator[bytes]:
    for block in blocks:
        yield block


@pytest.mark.parametrize("size", [0, 1, 131073, 5_000_000])
async def test_files_come_back_as_they_went(node, size):
    content = bytes(range(256)) * (size // 256 + 1)
    info = await node.guest.write_file("/tmp/a/b", _source(content[:size]), mode=0o600, user="user")
    assert (info.size, info.mode, info.user, info.path) == (size, 0o600, "user", "/tmp/a/b")
    async with node.guest.read_file("/tmp/a/b") as (found, chunks):
        assert found.etag == info.etag
        assert b"".join([chunk async for chunk in chunks]) == content[:size]
    async with node.guest.read_file("/tmp/a/b", start=1, length=10) as (_, chunks):
        assert b"".join([chunk async for chunk in chunks]) == content[1 : min(size, 11)]


async def test_the_tree_can_be_listed_moved_and_removed(node):
    guest = node.guest
    await guest.write_file("/tmp/d/one", _source(b"1"))
    await guest.make_directory("/tmp/d/sub/deep")
    await guest.write_file("/tmp/d/sub/two", _source(b"2"))
    assert [info.path for info in await guest.list_files("/tmp/d")] == ["/tmp/d/one", "/tmp/d/sub"]
    found = [info.path for info in await guest.list_files("/tmp/d", depth=3)]
    assert found == ["/tmp/d/one", "/tmp/d/sub", "/tmp/d/sub/deep", "/tmp/d/sub/two"]
    await guest.move_file("/tmp/d/sub", "/tmp/d/moved")
    assert (await guest.stat_file("/tmp/d/moved/two")).size == 1
    with pytest.raises(FailedPrecondition):
        await guest.remove_file("/tmp/d")
    await guest.remove_file("/tmp/d", recursive=True)
    with pytest.raises(NotFound):
        await guest.stat_file("/tmp/d")


async def test_file_errors_have_their_types(fake, node):
    guest = node.guest
    for path, error in (("/nope", NotFound), ("/tmp", FailedPrecondition)):
        with pytest.raises(error):
            async with guest.read_file(path):
                pass
    with pytest.raises(FailedPrecondition):
        await guest.write_file("/etc/hostname/x", _source(b""))
    for path in ("relative", "/a/../b", "/a\0b"):
        with pytest.raises(InvalidRequest):
            await guest.stat_file(path)
    fake.files.capacity = 1000
    with pytest.raises(InsufficientStorage):
        await guest.write_file("/tmp/big", _source(bytes(2000)))
    with pytest.raises(NotFound):
        await guest.stat_file("/tmp/big")


async def test_archives_go_both_ways(node):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("sub/file")
        entry.size = 3
        archive.addfile(entry, io.BytesIO(b"abc"))
    counts = await node.guest.write_archive("/tmp/t", _source(buffer.getvalue()))
    assert counts == {"files": 1, "bytes": 3}
    async with node.guest.read_archive("/tmp/t") as chunks:
        data = b"".join([chunk async for chunk in chunks])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames() == ["sub", "sub/file"]
    with pytest.raises(InvalidRequest):
        await node.guest.write_archive("/tmp/t", _source(buffer.getvalue()[:700]))


async def test_changes_are_told_to_those_who_watch(node):
    seen = []

    async def watch() -> None:
        async with contextlib.aclosing(node.guest.watch_files("/tmp", recursive=True)) as events:
            async for event in events:
                seen.append((event.kind, event.path))
                if event.path == "/tmp/last":
                    return

    task = asyncio.create_task(watch())
    await asyncio.sleep(0.05)
    await node.guest.write_file("/tmp/d/x", _source(b"1"))
    await node.guest.remove_file("/tmp/d/x")
    await node.guest.write_file("/tmp/last", _source(b"1"))
    await asyncio.wait_for(task, 10)
    assert seen == [("created", "/tmp/d"), ("created", "/tmp/d/x"), ("removed", "/tmp/d/x"), ("created", "/tmp/last")]


async def test_the_machine_answers_for_itself(node):
    assert await node.guest.ping() < 5
    assert (await node.guest.stats())["pids"] >= 1
    before = node.guest.boot_id
    await node.guest.personalise(hostname="other", env={"A": "1"}, token="a new token for this machine")
    assert before
    _, stdout, _ = await node.run("env")
    assert b"A=1\n" in stdout

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from space.core.command import CommandSpec
from space.node.guest import Exited, Guest, Output
from space.templates import agent
from space.templates.agent import build_agent_dir
from space.templates.elf import NotElf, closure, interpreter, needed
from space_guest.launch import agent_argv, agent_env

pytestmark = pytest.mark.anyio
TOKEN = "the token of a bare machine"


@pytest.fixture(scope="module")
def agent_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_agent_dir(tmp_path_factory.mktemp("agent"))


def test_building_again_finds_what_is_there(tmp_path):
    first = build_agent_dir(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    assert build_agent_dir(tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*")} == before
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


def test_another_agent_gets_another_directory(tmp_path, monkeypatch):
    first = build_agent_dir(tmp_path)
    monkeypatch.setattr(agent, "FORMAT", agent.FORMAT + 1)
    assert build_agent_dir(tmp_path) != first
    assert first.is_dir()


def test_the_same_parts_give_the_same_bytes(tmp_path, agent_dir):
    again = build_agent_dir(tmp_path)
    assert again.name == agent_dir.name
    for path in again.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (agent_dir / path.relative_to(again)).read_bytes()


def test_a_build_that_was_killed_leaves_nothing_that_counts(tmp_path, monkeypatch):
    def dies(*args: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(agent, "_archive", dies)
        with pytest.raises(OSError, match="no space"):
            build_agent_dir(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert (build_agent_dir(tmp_path) / "agent.pyz").is_file()


def test_users_of_the_guest_may_read_all_and_write_nothing(agent_dir):
    for path in [agent_dir, *agent_dir.rglob("*")]:
        mode = path.stat().st_mode & 0o777
        assert mode in ((0o755,) if path.is_dir() else (0o644, 0o755)), path


def test_it_is_small(agent_dir):
    assert sum(path.stat().st_size for path in agent_dir.rglob("*") if path.is_file()) < 20 << 20


def test_libraries_are_found_from_the_files_themselves(agent_dir):
    python = agent_dir / "bin" / "python3"
    assert "libc.so.6" in needed(python)
    assert (interpreter(python) or "").endswith("ld-linux-x86-64.so.2")
    programs = [python, *agent_dir.glob("lib/python*/lib-dynload/*.so")]
    with contextlib.suppress(FileNotFoundError):
        closure(programs, [agent_dir / "lib"])
    for program in programs:
        for name in needed(program):
            assert (agent_dir / "lib" / name).is_file() or name.startswith("ld-linux")


def test_what_is_no_program_is_refused(tmp_path):
    (tmp_path / "text").write_text("#!/bin/sh\n" * 10)
    with pytest.raises(NotElf):
        needed(tmp_path / "text")


@pytest.fixture
def bare_root(tmp_path: Path, agent_dir: Path) -> Path:
    """A root filesystem with a static busybox and nothing else: no libc, no Python."""
    busybox = shutil.which("busybox")
    if busybox is None or needed(Path(busybox)):
        pytest.skip("needs a static busybox: apt-get install busybox-static")
    root = tmp_path / "root"
    for name in ("bin", "etc", "tmp", "proc", "dev", ".space", "home/user", "run"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin" / "busybox")
    for name in ("sh", "true", "echo", "id", "cat", "sleep", "head"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\nuser:x:1000:\nextra:x:2000:user\n")
    (root / "run" / "token").write_text(TOKEN)
    (root / "run" / "token").chmod(0o400)
    os.chown(root / "home" / "user", 1000, 1000)
    shutil.copytree(agent_dir, root / ".space", dirs_exist_ok=True)
    return root


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class _Stream:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self._reader.read(max_bytes)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def first_process(root: Path) -> AsyncIterator[int]:
    """Run the agent as process 1 of new namespaces in `root`; its port is on this host's loopback."""
    port = free_port()
    mounts = 'mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && exec chroot "$0" "$@"'
    argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", mounts, str(root)]
    process = subprocess.Popen(
        [*argv, *agent_argv(port, "/run/token", "user")], env={**agent_env(), "PATH": os.environ["PATH"]}
    )
    try:
        yield port
    finally:
        process.kill()
        process.wait()


async def dial(port: int) -> _Stream:
    for _ in range(200):
        try:
            return _Stream(*await asyncio.open_connection("127.0.0.1", port))
        except OSError:
            await asyncio.sleep(0.05)
    raise AssertionError("the agent did not start")


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[Guest, "asyncio.Queue[Output | Exited]"]]:
    events: asyncio.Queue[Output | Exited] = asyncio.Queue()
    guest = await Guest.open(await dial(port), token=TOKEN, deliver=events.put)
    task = asyncio.create_task(guest.run())
    try:
        yield guest, events
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def run(guest, events, *argv: str, **options) -> tuple[Exited, bytes]:
    await guest.spawn(f"prc-{argv}", CommandSpec(argv=argv, **options), env={}, default_user="user")
    output = b""
    while not isinstance(event := await asyncio.wait_for(events.get(), 30), Exited):
        output += event.data
    return event, output


@pytest.mark.root
async def test_the_agent_works_without_python_and_libc_in_the_root(bare_root):
    """Every request once, so that a module that the directory lacks would show."""

    async def content() -> AsyncIterator[bytes]:
        yield b"x" * 100_000

    async with first_process(bare_root) as port, connected(port) as (guest, events):
        exited, output = await run(guest, events, "sh", "-c", "id; echo $HOME; exit 3")
        assert exited.exit_code == 3
        assert output == b"uid=1000(user) gid=1000(user) groups=1000(user),2000(extra)\n/home/user\n"
        await guest.write_file("/home/user/a/file", content(), user="user")
        async with guest.read_archive("/home/user") as chunks:
            archive = [chunk async for chunk in chunks]

        async def again() -> AsyncIterator[bytes]:
            for chunk in archive:
                yield chunk

        assert await guest.write_archive("/home/user/copy", again()) == {"files": 1, "bytes": 100_000}
        info = await guest.move_file("/home/user/copy/a/file", "/home/user/moved")
        assert (info.user, info.size) == ("user", 100_000)
        assert [found.path for found in await guest.list_files("/home/user")] == [
            "/home/user/a",
            "/home/user/copy",
            "/home/user/moved",
        ]
        watching = asyncio.ensure_future(anext(guest.watch_files("/home/user")))
        await asyncio.sleep(0.5)
        await guest.remove_file("/home/user/copy", recursive=True)
        assert (await asyncio.wait_for(watching, 10)).path == "/home/user/copy"
        assert (await guest.stats())["pids"] >= 3
        await guest.add_entropy(os.urandom(64))


@pytest.mark.root
async def test_the_first_process_reaps_orphans_and_learns_how_they_ended(bare_root):
    async with first_process(bare_root) as port, connected(port) as (guest, events):
        await run(guest, events, "sh", "-c", "(sleep 0.1 & exit) ; (sleep 0.1 &)")
        # The user kills all that it may, its own spawner included; the process inherited by 1 tells its end.
        await guest.spawn(
            "prc-survivor", CommandSpec(argv=("sh", "-c", "trap '' TERM; sleep 1; exit 9")), env={}, default_user="user"
        )
        await asyncio.sleep(0.3)
        await guest.spawn(
            "prc-killer", CommandSpec(argv=("sh", "-c", "sleep 0.2; kill -TERM -1")), env={}, default_user="user"
        )
        exits = [await asyncio.wait_for(events.get(), 30) for _ in range(2)]
        assert {event.process_id: event.exit_code for event in exits}["prc-survivor"] == 9
        script = "for p in /proc/[0-9]*/stat; do read -r pid name state rest < $p && echo $state; done"
        for attempt in range(50):
            _, states = await run(guest, events, "sh", "-c", script, "sh", str(attempt), user="root")
            if b"Z" not in states:
                break
            await asyncio.sleep(0.1)
        assert b"Z" not in states
        assert states


async def test_a_host_without_the_interpreter_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(agent, "PROGRAMS", (tmp_path / "python3.11",))
    with pytest.raises(Exception, match="apt-get install"):
        build_agent_dir(tmp_path)

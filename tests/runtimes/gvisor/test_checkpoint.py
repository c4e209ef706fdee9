"""Saving a machine: what cannot be saved is named, what was written is looked at, the machine goes on in each case."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtimes.gvisor.agents import PYTHON, AgentGuest, agent_guest

from space.core.errors import FailedPrecondition, InsufficientStorage, RuntimeFailed
from space.host import linux
from space.host.failpoint import FailpointError, arm
from space.runtimes.gvisor import checkpoint, origin
from space.runtimes.gvisor.command import CHECKPOINT
from space.runtimes.gvisor.origin import Origin
from space.testing.conformance.runtime import echo

pytestmark = pytest.mark.anyio
root = pytest.mark.root


@pytest.fixture
async def guest(make_host: Callable[..., Any], agent_dir: Path) -> AsyncIterator[AgentGuest]:
    found = await agent_guest(make_host("agent"), agent_dir)
    yield found
    await found.machine.stop()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return tmp_path / "image"


@pytest.fixture
def checkpoint_files(image: Path) -> Path:
    """What a checkpoint looks like."""
    image.mkdir()
    (image / "checkpoint.img").write_bytes(checkpoint.MAGIC + b"...")
    (image / "pages.img").write_bytes(bytes(8192))
    (image / "pages_meta.img").write_bytes(b"...")
    (image / origin.FILE).write_text(json.dumps({"agent": "a1", "addresses": ["10.64.0.3"]}))
    return image


async def works(guest: AgentGuest) -> bool:
    async with guest.connected():
        return await guest.sh("echo yes") == "yes"


# What cannot be saved


@root
async def test_a_session_of_runsc_exec_is_named_and_the_machine_goes_on(guest: AgentGuest, image: Path) -> None:
    """Saved all the same, it could not be restored (trap 3); only an operator can open one."""
    runsc = guest.host.runtime()._runsc
    argv = [runsc.program, f"--root={runsc.root}", "exec", guest.spec.machine_id, "/bin/sleep", "60"]
    session = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        async with guest.connected():
            while "sleep 60" not in await guest.sh("ps"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        with pytest.raises(FailedPrecondition, match="runsc exec"):
            await guest.machine.snapshot(image)
        assert not image.exists()
        assert await works(guest)
    finally:
        session.kill()
        session.wait()
    with pytest.raises(FailedPrecondition, match="runsc exec"):  # what the session started runs on
        await guest.machine.snapshot(image)
    assert not image.exists()
    async with guest.connected():
        await guest.sh("kill $(pidof sleep); (sleep 50 > /dev/null 2>&1 &)")  # an orphan of the guest's is none of them
        while "sleep 60" in await guest.sh("ps"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await guest.machine.snapshot(image)
    restored = await guest.restored(image)
    assert await works(restored)
    await restored.machine.stop()


@root
async def test_a_connection_that_is_being_made_is_named_and_the_machine_goes_on(guest: AgentGuest, image: Path) -> None:
    program = (
        "import socket; s = socket.socket(); s.setblocking(False); s.connect_ex(('192.0.2.1', 80)); print(1); input()"
    )
    async with guest.connected():
        dialling = await guest.start(*PYTHON, f"{program}; print(1); input()", stdin=True)
        await guest.says(dialling, b"1\n")
    with pytest.raises(FailedPrecondition, match="TCP connection that is being made"):
        await guest.machine.snapshot(image)
    assert not image.exists()
    async with guest.connected():
        await guest.guest.signal(dialling, "SIGKILL")
        await asyncio.sleep(0.2)
    await guest.machine.snapshot(image)


@root
async def test_a_full_disk_is_told_and_the_machine_goes_on(guest: AgentGuest, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    assert await works(guest)
    linux.mount("none", small, "tmpfs", linux.MS_NOSUID, "size=4m")
    try:
        with pytest.raises(InsufficientStorage, match="full"):
            await guest.machine.snapshot(small / "image")
        assert list(small.iterdir()) == []
        assert await works(guest)
    finally:
        linux.umount(small, linux.MNT_DETACH)
    await guest.machine.snapshot(tmp_path / "image")


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("writing pages: write pages.img: no space left on device", InsufficientStorage, "full"),
        ("encoding error: deleted and invalidated dentries can't be restored", FailedPrecondition, "deleted"),
        ("encoding error: Cannot save endpoint with bound host socket", FailedPrecondition, "socket"),
        ("loading container: container does not exist", RuntimeFailed, "did not save"),
        ("", RuntimeFailed, "did not save"),
    ],
)
def test_what_runsc_says_becomes_a_typed_error_without_its_words(said: str, kind: type, words: str) -> None:
    error = checkpoint.refusal("sbx1", said, into=Path("/snapshots/x"))
    assert type(error) is kind
    assert words in error.message
    assert "encoding" not in error.message


# What is interrupted


@root
async def test_a_snapshot_that_is_cancelled_leaves_nothing_and_can_be_made_again(
    guest: AgentGuest, image: Path
) -> None:
    assert await works(guest)
    for seconds in (0.0, 0.02, 0.05):
        saving = asyncio.ensure_future(guest.machine.snapshot(image))
        await asyncio.sleep(seconds)
        saving.cancel()
        await asyncio.gather(saving, return_exceptions=True)
        if not saving.cancelled():
            break  # it was quicker
        assert not image.exists()
        assert await works(guest)
    await guest.machine.snapshot(image.with_name("last"))
    assert await works(guest)


@root
async def test_a_node_that_dies_while_it_saves_takes_nothing_with_it(guest: AgentGuest, image: Path) -> None:
    """The sentry writes by itself; whoever asked hangs up in the middle."""
    program = """
import os, signal, sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from space.runtimes.gvisor.checkpoint import OPTIONS, WRITTEN
from space.runtimes.gvisor import sentry
import asyncio
fds = [os.open(Path(sys.argv[3], name), os.O_RDWR | os.O_CREAT) for name in WRITTEN]
threading.Timer(float(sys.argv[4]), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
asyncio.run(sentry.call(Path(sys.argv[2]), "containerManager.Checkpoint", OPTIONS, fds=fds))
"""
    control = guest.host.runtime()._runsc.control_socket(guest.spec.machine_id)
    for seconds in ("0.001", "0.01", "0.03"):
        unfinished = image.with_name(f"unfinished-{seconds}")
        unfinished.mkdir()
        source = str(Path(checkpoint.__file__).parents[3])
        argv = [sys.executable, "-c", program, source, str(control), str(unfinished), seconds]
        await asyncio.to_thread(subprocess.run, argv, stderr=subprocess.DEVNULL, check=False)
        assert await works(guest)
    await guest.machine.snapshot(image)
    restored = await guest.restored(image)
    assert await works(restored)
    await restored.machine.stop()


@root
async def test_a_node_that_starts_anew_does_not_take_a_machine_that_is_being_saved_for_half_built(
    guest: AgentGuest, image: Path
) -> None:
    assert await works(guest)
    saving = asyncio.ensure_future(guest.machine.snapshot(image))
    await asyncio.sleep(0.02)
    machine = await guest.host.runtime().start(guest.spec)
    assert machine.handle == guest.machine.handle
    await saving
    assert await works(guest)


@root
async def test_a_failure_after_runsc_has_written_leaves_nothing(make_host: Callable[..., Any], image: Path) -> None:
    host = make_host("echo")
    spec = await host.spec()
    machine = await host.runtime().start(spec)
    assert await echo(machine, spec) == b"hello"
    arm("gvisor.after_checkpoint:error")
    try:
        with pytest.raises(FailpointError):
            await machine.snapshot(image)
    finally:
        arm("")
    assert not image.exists()
    assert await echo(machine, spec) == b"hello"
    await machine.stop()


@root
@pytest.mark.parametrize("place", ["before", "after"])
async def test_a_restore_that_fails_half_way_leaves_nothing(
    make_host: Callable[..., Any], image: Path, place: str
) -> None:
    host = make_host("echo")
    spec, other = await host.spec(), await host.spec()
    machine = await host.runtime().start(spec)
    assert await echo(machine, spec) == b"hello"
    await machine.snapshot(image)
    await machine.stop()
    arm(f"gvisor.{place}_restore:error")
    try:
        with pytest.raises(FailpointError):
            await host.runtime().start(other, snapshot=image)
    finally:
        arm("")
    await host.runtime().sweep(frozenset())  # a bug in between is repaired as a crash is
    host.cgroups.sweep(())
    assert host.leftovers() == []


# What is damaged

MOST = 1 << 30


def test_a_whole_checkpoint_is_accepted(checkpoint_files: Path) -> None:
    checkpoint.verify(checkpoint_files, MOST)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("checkpoint.img", b""),
        ("checkpoint.img", b"not a state file"),
        ("pages.img", b""),
        ("pages.img", bytes(8191)),
        ("pages_meta.img", b""),
    ],
)
def test_a_file_that_cannot_be_right_is_refused(checkpoint_files: Path, name: str, content: bytes) -> None:
    (checkpoint_files / name).write_bytes(content)
    with pytest.raises(RuntimeFailed, match=name):
        checkpoint.verify(checkpoint_files, MOST)


@pytest.mark.parametrize("name", checkpoint.WRITTEN)
def test_a_sentry_cannot_keep_us_busy_with_a_huge_file_that_takes_no_room(checkpoint_files: Path, name: str) -> None:
    os.truncate(checkpoint_files / name, 1 << 42)
    with pytest.raises(RuntimeFailed, match=name):
        checkpoint.verify(checkpoint_files, MOST)


@pytest.mark.parametrize("name", checkpoint.FILES)
def test_a_file_that_is_missing_is_refused(checkpoint_files: Path, name: str) -> None:
    (checkpoint_files / name).unlink()
    with pytest.raises(FileNotFoundError):
        checkpoint.verify(checkpoint_files, MOST)


@root
@pytest.mark.parametrize("name", ["checkpoint.img", "pages.img", "pages_meta.img"])
async def test_a_checkpoint_that_was_cut_starts_nothing(make_host: Callable[..., Any], image: Path, name: str) -> None:
    host = make_host("echo")
    spec, other = await host.spec(), await host.spec()
    machine = await host.runtime().start(spec)
    assert await echo(machine, spec) == b"hello"
    await machine.snapshot(image)
    await machine.stop()
    os.truncate(image / name, (image / name).stat().st_size // 2 & ~4095)
    with pytest.raises(RuntimeFailed):
        await host.runtime().start(other, snapshot=image)
    assert host.leftovers() == []


# What it was made with


@root
async def test_a_machine_of_before_an_update_goes_on_with_the_agent_that_it_had(
    guest: AgentGuest, image: Path, tmp_path: Path
) -> None:
    assert await works(guest)
    await guest.machine.snapshot(image)
    newer = guest.spec.agent_dir.with_name("0" * 32)
    newer.mkdir(exist_ok=True)
    guest.host.agent_dir = newer
    other = await guest.restored(image)
    assert await works(other)
    await other.machine.snapshot(tmp_path / "again")
    assert origin.read(tmp_path / "again").agent == guest.spec.agent_dir.name
    await other.machine.stop()


@root
async def test_a_machine_whose_agent_is_not_on_this_host_is_not_started(
    guest: AgentGuest, image: Path, tmp_path: Path
) -> None:
    assert await works(guest)
    await guest.machine.snapshot(image)
    spec = replace(await guest.host.spec(), agent_dir=tmp_path / "elsewhere")
    with pytest.raises(RuntimeFailed):
        await guest.host.runtime().start(spec, snapshot=image)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"agent": "a1"}',
        '{"agent": "../../etc", "addresses": []}',
        '{"agent": "a1", "addresses": ["10.0.0.1/8 dev lo"]}',
    ],
)
def test_a_note_that_was_tampered_with_is_no_checkpoint(checkpoint_files: Path, content: str) -> None:
    (checkpoint_files / origin.FILE).write_text(content)
    with pytest.raises(RuntimeFailed, match="no checkpoint"):
        origin.read(checkpoint_files)


def test_what_was_noted_is_read(checkpoint_files: Path) -> None:
    assert origin.read(checkpoint_files) == Origin("a1", ["10.64.0.3"])


def test_the_command_is_the_one_of_the_traps() -> None:
    assert CHECKPOINT == ("checkpoint", "-leave-running", "-compression=none")

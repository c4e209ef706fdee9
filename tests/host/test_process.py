"""Starting, watching and ending processes."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from space.host.daemon import start_time_of
from space.host.process import ProcessFailed, memory_file, process_is, run, spawn

pytestmark = pytest.mark.anyio


async def test_a_programs_output_and_status_are_returned() -> None:
    completed = await run(["/bin/sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in", check=False)
    assert (completed.returncode, completed.stdout, completed.stderr) == (3, b"in", b"err\n")


async def test_a_failing_program_raises_with_what_it_said() -> None:
    with pytest.raises(ProcessFailed, match="sh ended with 4: it broke") as caught:
        await run(["/bin/sh", "-c", "echo it broke >&2; exit 4"])
    assert caught.value.returncode == 4


async def test_a_program_that_takes_too_long_is_killed() -> None:
    start = time.monotonic()
    with pytest.raises(ProcessFailed, match="did not end in time") as caught:
        await run(["/bin/sleep", "60"], timeout=0.1)
    assert time.monotonic() - start < 5
    assert caught.value.returncode is None


async def test_a_missing_program_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="/no/such/program"):
        await run(["/no/such/program"])


async def test_a_cancelled_run_leaves_no_process(tmp_path: Path) -> None:
    task = asyncio.ensure_future(run(["/bin/sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 60"]))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert start_time_of(int((tmp_path / "pid").read_text())) is None


async def test_a_childs_environment_is_only_what_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of the server")
    completed = await run(["/usr/bin/env"], env={"A": "1"})
    assert completed.stdout == b"A=1\n"


async def test_a_child_gets_no_descriptor_but_those_named(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "x", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(descriptor, True)
    listing = (await run(["/bin/ls", "-l", "/proc/self/fd"])).stdout.decode()
    os.close(descriptor)
    assert str(tmp_path) not in listing


async def test_named_descriptors_are_passed() -> None:
    with memory_file(b"content") as descriptor:
        process = spawn(
            [sys.executable, "-c", f"import os; assert os.read({descriptor}, 9) == b'content'"], pass_fds=[descriptor]
        )
        assert await process.wait() == 0


async def test_output_is_bounded() -> None:
    completed = await run(["/bin/sh", "-c", "head -c 100000 /dev/zero"], max_output=1000)
    assert len(completed.stdout) == 1000


async def test_stderr_is_kept_in_a_ring() -> None:
    process = spawn(["/bin/sh", "-c", "for i in $(seq 1 1000); do echo line $i >&2; done"])
    await process.wait()
    lines = process.stderr_tail.splitlines()
    assert len(lines) == 50
    assert lines[-1] == "line 1000"


async def test_a_line_without_an_end_does_not_fill_memory() -> None:
    process = spawn(["/bin/sh", "-c", "head -c 10000000 /dev/zero >&2"])
    await process.wait()
    assert len(process.stderr_tail) < 200_000


async def test_stopping_asks_first() -> None:
    process = spawn(["/bin/sh", "-c", "trap 'exit 5' TERM; while :; do sleep 0.02; done"])
    await asyncio.sleep(0.2)
    assert await process.stop(grace=5) == 5


async def test_stopping_kills_what_does_not_listen() -> None:
    process = spawn(["/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.02; done"])
    await asyncio.sleep(0.2)
    assert await process.stop(grace=0.1) == -signal.SIGKILL
    assert await process.stop() == -signal.SIGKILL


async def test_several_tasks_may_wait_for_one_process() -> None:
    process = spawn(["/bin/sh", "-c", "exit 6"])
    assert await asyncio.gather(process.wait(), process.wait(), process.wait()) == [6, 6, 6]


async def test_a_pid_is_told_from_its_next_owner() -> None:
    process = spawn(["/bin/sleep", "60"])
    assert process.start_time is not None
    assert process_is(process.pid, process.start_time)
    assert not process_is(process.pid, process.start_time + 1)
    await process.stop(grace=0)
    assert not process_is(process.pid, process.start_time)


async def test_no_descriptor_is_left_after_many_runs() -> None:
    await run(["/bin/true"])
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        await run(["/bin/true"])
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.root
async def test_hidden_directories_are_empty_for_the_child_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert (await run(["/bin/ls", str(tmp_path)], hidden=[str(tmp_path)])).stdout == b""
    assert (tmp_path / "file").exists()


@pytest.mark.root
async def test_a_mount_of_the_child_never_reaches_the_host(tmp_path: Path) -> None:
    await run(["/bin/mount", "-t", "tmpfs", "none", str(tmp_path)], hidden=[])
    assert not tmp_path.is_mount()

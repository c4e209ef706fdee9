"""`kill -9` of the node at every step boundary, in a child process; machines live on, and a new node repairs it."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.node import detached
from tests.node.detached import DetachedRuntime, Scenario, detached_node
from tests.node.harness import eventually, order, shell

from space.core.errors import StaleGeneration

pytestmark = [pytest.mark.anyio, pytest.mark.live]

STARTING = (
    "record.after_directory",
    "ensure.after_generation",
    "ensure.after_intent",
    "ensure.after_start",
    "ensure.after_handle",
    "ensure.after_ready",
    "journal.after_create",
    "process.before_spawn",
    "process.after_spawn",
    "journal.before_write",
    "journal.after_write",
    "journal.before_write:kill:20",
    "journal.after_write:kill:20",
    "process.before_exit",
)
ENDING = ("remove.after_tombstone", "bury.after_stop", "bury.after_slot", "record.after_handle", "remove.after_end")
EXPECTED = b"".join(b"%d\n" % number for number in range(60))


@pytest.fixture
async def clean(tmp_path: Path) -> AsyncIterator[Path]:
    yield tmp_path
    await DetachedRuntime(tmp_path / "kernel").sweep(frozenset())


def run_victim(directory: Path, failpoint: str) -> int:
    name, _, rest = failpoint.partition(":")
    environment = {**os.environ, "SPACE_FAILPOINT": f"{name}:{rest or 'kill'}"}
    argv = [sys.executable, detached.__file__, str(directory)]
    return subprocess.run(argv, env=environment, timeout=60, check=False, stdout=subprocess.DEVNULL).returncode


def scenario(directory: Path, *, until: str = "[ $i -ge 60 ]", pause: float = 0.005) -> Scenario:
    count = f"i=0; until {until}; do echo $i; i=$((i+1)); sleep {pause}; done"
    made = Scenario(order(), shell(f"echo run >> {directory}/runs; {count}"))
    (directory / "scenario").write_bytes(pickle.dumps(made))
    return made


async def assert_clean(directory: Path, runtime: DetachedRuntime) -> None:
    records = directory / "data/node/machines"
    await eventually(lambda: not runtime.machines() and not list(records.iterdir()))


@pytest.mark.parametrize("failpoint", STARTING)
async def test_a_node_killed_while_a_sandbox_runs_loses_and_repeats_nothing(clean: Path, failpoint: str) -> None:
    wanted = scenario(clean)
    assert await anyio.to_thread.run_sync(run_victim, clean, failpoint) == -signal.SIGKILL
    async with detached_node(clean) as (node, runtime):
        assert len(runtime.machines()) <= 1
        with anyio.fail_after(20):
            assert await wanted.live(node) == EXPECTED
        assert len(runtime.machines()) == 1
        assert (clean / "runs").read_text() == "run\n"
        status = await node.session_status(wanted.process.session_id)
        assert status is not None
        assert (status.exit_code, status.is_lost) == (0, False)
        await node.remove(wanted.machine.ref)
        await assert_clean(clean, runtime)


@pytest.mark.parametrize("failpoint", ENDING)
async def test_a_node_killed_while_it_removes_ends_with_nothing_left(clean: Path, failpoint: str) -> None:
    wanted = scenario(clean)
    assert await anyio.to_thread.run_sync(run_victim, clean, failpoint) == -signal.SIGKILL
    async with detached_node(clean) as (node, runtime):
        await assert_clean(clean, runtime)
        assert await node.report() == {}
        with pytest.raises(StaleGeneration):
            await node.ensure(wanted.machine)
        await node.remove(wanted.machine.ref)
        status = await node.session_status(wanted.process.session_id)
        assert status is not None
        assert (status.exit_code, status.stdout_bytes) == (0, len(EXPECTED))


async def test_a_node_killed_ten_times_during_one_command_shows_each_line_once(clean: Path) -> None:
    wanted = scenario(clean, until=f"[ -e {clean}/stop ]", pause=0.05)
    for number in range(10):
        failpoint = f"journal.after_write:kill:{number % 3 + 2}"
        assert await anyio.to_thread.run_sync(run_victim, clean, failpoint) == -signal.SIGKILL
    (clean / "stop").touch()
    async with detached_node(clean) as (node, _):
        lines = (await wanted.live(node)).splitlines()
        assert lines == [b"%d" % number for number in range(len(lines))]
        assert len(lines) > 20
        assert (clean / "runs").read_text() == "run\n"

"""Kill the server at every step boundary and every commit, restart it on what it left, and check what must hold.

The scenario runs in a forked child that dies by SIGKILL; the node's machines live in files, as real ones outlive the
server.  A second child recovers.  Then the parent looks at the database and at the node.
"""

import asyncio
import contextlib
import os
import signal
import time
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from space.control.observations import Observations
from space.control.steps import STEPS
from space.core.errors import CapacityUnavailable
from space.core.ids import SandboxId
from space.core.lifecycle import Kind, State
from space.core.node import MachineOrder, MachineRef
from space.core.operation import Status
from space.host import failpoint
from space.storage.sql.store import open_store
from space.testing.control_plane import ControlPlane, control_plane
from space.testing.node import FakeNode

pytestmark = pytest.mark.live

KINDS = (Kind.CREATE, Kind.DELETE)
BOUNDARIES = [
    f"{kind}.{name}"
    for kind in KINDS
    for name in (
        "admitted",
        *(f"{place}_{step.__name__}" for step in STEPS[kind] for place in ("before", "after")),
        "finished",
    )
]
NODE_BOUNDARIES = ["node.ensure.before", "node.ensure.after", "node.remove.before", "node.remove.after"]
COMMITS = [f"store.{place}_commit:kill:{n}" for place in ("before", "after") for n in range(1, 7)]
POINTS = [f"{name}:kill" for name in (*BOUNDARIES, *NODE_BOUNDARIES)] + COMMITS


class DurableNode(FakeNode):
    """A node whose machines and tombstones are files: they outlive the process that drives it."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        directory.mkdir(exist_ok=True)
        for path in directory.iterdir():
            kind, sandbox_id = path.name.split("-")
            table = {"machine": self.machines, "seen": self.seen, "tombstone": self.tombstones}[kind]
            table[SandboxId(sandbox_id)] = int(path.read_text())

    async def ensure(self, order: MachineOrder) -> None:
        failpoint.failpoint("node.ensure.before")
        self._see(order.ref)
        self._keep("seen", order.ref)
        await super().ensure(order)
        self._keep("machine", order.ref)
        failpoint.failpoint("node.ensure.after")

    async def remove(self, ref: MachineRef, *, grace: float = 0) -> None:
        failpoint.failpoint("node.remove.before")
        self._keep("tombstone", ref)
        await super().remove(ref)
        if ref.sandbox_id not in self.machines:
            (self._directory / f"machine-{ref.sandbox_id}").unlink(missing_ok=True)
        failpoint.failpoint("node.remove.after")

    def _keep(self, kind: str, ref: MachineRef) -> None:
        path = self._directory / f"{kind}-{ref.sandbox_id}"
        half = self._directory.with_name("half-written")
        half.write_text(str(ref.generation))
        half.replace(path)  # whole or not at all, as the real node's records


class _NoProcesses:
    async def apply_status(self, status: object) -> None:
        raise AssertionError("no process was started")

    async def lose_all(self, ref: MachineRef, reason: str) -> None: ...


def in_child(scenario: Coroutine[Any, Any, None], *, armed: str = "") -> int:
    """Run it in a forked process; returns the exit code, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            failpoint.arm(armed)
            asyncio.run(scenario)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    scenario.close()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def _scenario(directory: Path) -> None:
    """Create one sandbox that stays and one that goes; write down what was acknowledged."""
    async with control_plane(directory, node=DurableNode(directory / "node")) as plane:
        for fate in ("stays", "goes"):
            sandbox, operation = await plane.create()
            _note(directory, f"{fate}:{sandbox.id}")
            await plane.ended(operation)
            if fate == "goes":
                delete = await plane.delete(sandbox.id)
                _note(directory, f"deleted:{sandbox.id}")
                await plane.ended(delete)
        await plane.idle()  # waiters hear of the commit before the worker goes on


def _note(directory: Path, line: str) -> None:
    with (directory / "acknowledged").open("a") as file:
        file.write(line + "\n")


async def _recover(directory: Path) -> None:
    node = DurableNode(directory / "node")
    async with control_plane(directory, node=node) as plane:
        await Observations(plane.store, node, plane.clock, _NoProcesses()).reconcile()
        async with asyncio.timeout(20):
            while _rows(plane, "SELECT 1 FROM operations WHERE status IN ('queued', 'running')"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await Observations(plane.store, node, plane.clock, _NoProcesses()).reconcile()


def _rows(plane: ControlPlane, sql: str) -> list[Any]:
    return plane.store._reader.rows(sql)


@pytest.mark.parametrize("point", POINTS)
def test_whatever_the_server_was_doing_when_it_was_killed_is_finished_by_the_next_one(
    point: str, tmp_path: Path
) -> None:
    # the fixture's two projects are the first two commits: count from there
    if point in COMMITS:
        name, _, number = point.rpartition(":")
        point = f"{name}:{int(number) + 2}"
    assert in_child(_scenario(tmp_path), armed=point) == -signal.SIGKILL, f"{point} was not reached"
    assert in_child(_recover(tmp_path)) == 0

    asyncio.run(_check(tmp_path))


async def _check(directory: Path) -> None:
    acknowledged = (directory / "acknowledged").read_text().split() if (directory / "acknowledged").exists() else []
    machines = DurableNode(directory / "node").machines
    store = open_store(directory / "space.db")
    try:
        for line in acknowledged:
            promise, _, sandbox_id = line.partition(":")
            row = await store.sandboxes.find(sandbox_id)
            assert row is not None, "an acknowledged create has its row"
            if promise == "stays":
                assert row.state is State.RUNNING
            if promise == "deleted":
                assert row.state is State.DELETED
        rows = [await store.sandboxes.find(row[0]) for row in store._reader.rows("SELECT id FROM sandboxes")]
        wanted = {row.id: row.generation for row in rows if row and row.state is State.RUNNING}
        assert machines == wanted, "machines are exactly those that rows want"
        for row in rows:
            assert row is not None
            assert row.held_by is None
            assert row.state in (State.RUNNING, State.DELETED)
            events = await store.events.read(row.id, after=0, limit=100)
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            finished = [event for event in events if event.type == "operation.succeeded"]
            assert len(finished) == (2 if row.state is State.DELETED else 1), "each operation ended once"
        for (operation_id,) in store._reader.rows("SELECT id FROM operations"):
            operation = await store.operations.find(operation_id)
            assert operation is not None
            assert operation.status is Status.SUCCEEDED
    finally:
        await store.aclose()


async def _create_without_end(directory: Path) -> None:
    async with control_plane(directory, node=DurableNode(directory / "node")) as plane:

        async def client() -> None:
            while True:
                try:
                    sandbox, _ = await plane.create()
                except CapacityUnavailable:  # a quick machine: it has filled the node before it is killed
                    await asyncio.sleep(60)
                _note(directory, f"stays:{sandbox.id}")

        async with asyncio.TaskGroup() as clients:
            for _ in range(16):
                clients.create_task(client())


@pytest.mark.parametrize("milliseconds", [120, 210, 330])
def test_what_was_acknowledged_while_many_create_survives_a_kill_at_any_moment(
    milliseconds: int, tmp_path: Path
) -> None:
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            asyncio.run(_create_without_end(tmp_path))
        os._exit(99)
    while not (tmp_path / "acknowledged").exists():
        time.sleep(0.01)
    time.sleep(milliseconds / 1000)
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert in_child(_recover(tmp_path)) == 0
    assert len((tmp_path / "acknowledged").read_text().splitlines()) > 10
    asyncio.run(_check(tmp_path))


def test_the_scenario_ends_by_itself_when_nothing_kills_it(tmp_path: Path) -> None:
    assert in_child(_scenario(tmp_path)) == 0
    asyncio.run(_check(tmp_path))

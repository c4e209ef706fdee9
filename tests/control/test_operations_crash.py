"""Kill the server at every step boundary and every commit, restart it on what it left, and check what must hold.

The scenario runs in a forked child that dies by SIGKILL; the node's machines live in files, as real ones outlive the
server.  A second child recovers.  Then the parent looks at the database and at the node.
"""

import asyncio
import contextlib
import os
import pickle
import signal
import time
import traceback
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from space.control.contexts import MAKES_SNAPSHOT
from space.control.observations import Observations
from space.control.steps import STEPS
from space.core.errors import CapacityUnavailable
from space.core.ids import SandboxId, SnapshotId
from space.core.lifecycle import Kind, State
from space.core.node import MachineOrder, MachineRef
from space.core.operation import Status
from space.core.snapshot import SnapshotOrder, SnapshotPlan, SnapshotResult, SnapshotState
from space.host import failpoint
from space.storage.sql.store import open_store
from space.testing.control_plane import ControlPlane, NoProcesses, a_call, control_plane
from space.testing.node import FakeNode

pytestmark = pytest.mark.live


def boundaries(*kinds: Kind) -> list[str]:
    """Name every place around the steps of these kinds at which a server can die."""
    found = []
    for kind in kinds:
        steps = [step.__name__ for step in STEPS[kind]]
        records = steps if kind in MAKES_SNAPSHOT else steps[:-1]  # what a last step found out is recorded too
        found += [f"{kind}.admitted", *(f"{kind}.{place}_{name}" for name in steps for place in ("before", "after"))]
        found += [*(f"{kind}.recorded_{name}" for name in records), f"{kind}.finished"]
    return found


def kills(*methods: str) -> list[str]:
    """Name both sides of these calls of the node."""
    return [f"node.{method}.{side}" for method in methods for side in ("before", "after")]


LEASE_SECONDS = 0.5  # for what is killed: nobody should have to wait long for its end
COMMITS = [f"store.{place}_commit:kill:{n}" for place in ("before", "after") for n in range(1, 7)]
POINTS = [f"{name}:kill" for name in (*boundaries(Kind.CREATE, Kind.DELETE), *kills("ensure", "remove"))] + COMMITS


class DurableNode(FakeNode):
    """A node whose machines and moments are in a file: they outlive the process that drives it.

    Each call changes it wholly or not at all, as a call of the real node does in the end.
    """

    _KEPT = (
        "machines",
        "memory",
        "stopped",
        "restored",
        "seen",
        "tombstones",
        "released",
        "checkpoints",
        "objects",
        "pool",
        "bound",
    )

    def __init__(self, directory: Path) -> None:
        super().__init__()
        directory.mkdir(exist_ok=True)
        self._file = directory / "state"
        if self._file.exists():
            for name, value in pickle.loads(self._file.read_bytes()).items():  # noqa: S301  our own
                setattr(self, name, value)

    async def ensure(self, order: MachineOrder) -> None:
        async with self._whole("ensure"):
            await super().ensure(order)

    async def pause(self, ref: MachineRef) -> None:
        async with self._whole("pause"):
            await super().pause(ref)

    async def resume(self, ref: MachineRef) -> None:
        async with self._whole("resume"):
            await super().resume(ref)

    async def checkpoint(self, ref: MachineRef, order: SnapshotOrder) -> SnapshotPlan:
        async with self._whole("checkpoint"):
            return await super().checkpoint(ref, order)

    async def upload(self, order: SnapshotOrder) -> SnapshotResult:
        async with self._whole("upload"):
            return await super().upload(order)

    async def discard(self, snapshot_id: SnapshotId) -> None:
        async with self._whole("discard"):
            await super().discard(snapshot_id)

    async def release(self, ref: MachineRef) -> None:
        async with self._whole("release"):
            await super().release(ref)

    async def remove(self, ref: MachineRef, *, grace: float = 0) -> None:
        async with self._whole("remove"):
            await super().remove(ref)

    def keep(self) -> None:
        """Write the present state, whole or not at all, as the real node's records."""
        half = self._file.with_name("half-written")
        half.write_bytes(pickle.dumps({name: getattr(self, name) for name in self._KEPT}))
        half.replace(self._file)

    @contextlib.asynccontextmanager
    async def _whole(self, method: str) -> AsyncIterator[None]:
        failpoint.failpoint(f"node.{method}.before")
        yield
        self.keep()
        failpoint.failpoint(f"node.{method}.after")


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
    async with control_plane(directory, node=DurableNode(directory / "node"), lease_seconds=LEASE_SECONDS) as plane:
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
        await Observations(plane.store, node, plane.clock, NoProcesses()).reconcile()
        async with asyncio.timeout(20):
            while _rows(plane, "SELECT 1 FROM operations WHERE status IN ('queued', 'running')"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await Observations(plane.store, node, plane.clock, NoProcesses()).reconcile()


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


# The lifecycle


async def _pause_and_wake(plane: ControlPlane, sandbox_id: SandboxId) -> None:
    await plane.done(plane.sandboxes.pause(a_call(), sandbox_id))
    await plane.done(plane.sandboxes.wake(a_call(), sandbox_id))


async def _suspend(plane: ControlPlane, sandbox_id: SandboxId) -> None:
    await plane.done(plane.sandboxes.suspend(a_call(), sandbox_id))


async def _suspend_and_wake(plane: ControlPlane, sandbox_id: SandboxId) -> None:
    await _suspend(plane, sandbox_id)
    await plane.done(plane.sandboxes.wake(a_call(), sandbox_id))


async def _fork(plane: ControlPlane, sandbox_id: SandboxId) -> None:
    forked = await plane.sandboxes.fork(a_call(), sandbox_id, 2)
    for child in forked.children:
        assert not isinstance(child, Exception)
        operation = await plane.store.operations.find(child.held_by or "")
        assert operation is not None
        await plane.ended(operation)


async def _snapshot(plane: ControlPlane, sandbox_id: SandboxId) -> None:
    await plane.done(plane.sandboxes.snapshot(a_call(), sandbox_id, "kept"))


async def _lose_and_recover(plane: ControlPlane, sandbox_id: SandboxId) -> None:
    await _snapshot(plane, sandbox_id)
    plane.node.crash(sandbox_id, is_seen=False)
    assert isinstance(plane.node, DurableNode)
    plane.node.keep()
    await Observations(plane.store, plane.node, plane.clock, NoProcesses()).reconcile()
    await plane.done(plane.sandboxes.recover(a_call(), sandbox_id))


STORIES = {
    "pause": (_pause_and_wake, [*boundaries(Kind.PAUSE), *kills("pause")]),
    "wake": (_pause_and_wake, [*boundaries(Kind.WAKE), *kills("resume")]),
    "suspend": (_suspend, [*boundaries(Kind.SUSPEND), *kills("checkpoint", "upload", "release")]),
    "restore": (_suspend_and_wake, boundaries(Kind.WAKE)),
    "fork": (_fork, [*boundaries(Kind.FORK), *kills("checkpoint", "upload")]),
    "snapshot": (_snapshot, [*boundaries(Kind.SNAPSHOT), *kills("checkpoint", "upload")]),
    "recover": (_lose_and_recover, boundaries(Kind.RECOVER)),
}
KILLED = [(story, point) for story, (_, points) in STORIES.items() for point in points]


async def _tell(directory: Path, story: str) -> None:
    node = DurableNode(directory / "node")
    async with control_plane(directory, node=node, lease_seconds=LEASE_SECONDS) as plane:
        sandbox = await plane.running()
        node.memory[sandbox.id]["n"] = 1
        node.keep()
        _note(directory, f"stays:{sandbox.id}")
        await STORIES[story][0](plane, sandbox.id)
        await plane.idle()


@pytest.mark.parametrize(("story", "point"), KILLED)
def test_a_lifecycle_change_during_which_the_server_is_killed_is_finished_and_loses_nothing(
    story: str, point: str, tmp_path: Path
) -> None:
    assert in_child(_tell(tmp_path, story), armed=f"{point}:kill") == -signal.SIGKILL, f"{point} was not reached"
    assert in_child(_recover(tmp_path)) == 0
    asyncio.run(_check_story(tmp_path))


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_kill_at_any_commit_of_a_lifecycle_change_loses_nothing(story: str, place: str, tmp_path: Path) -> None:
    """The commits are counted until the story has no more of them."""
    for number in range(1, 60):
        directory = tmp_path / str(number)
        directory.mkdir()
        code = in_child(_tell(directory, story), armed=f"store.{place}_commit:kill:{number + 2}")
        assert in_child(_recover(directory)) == 0
        asyncio.run(_check_story(directory))
        if code == 0:
            return
        assert code == -signal.SIGKILL
    raise AssertionError("the story has too many commits")


async def _check_story(directory: Path) -> None:
    """Whatever was begun has ended; machines, memory and snapshots are what the rows say."""
    node = DurableNode(directory / "node")
    store = open_store(directory / "space.db")
    try:
        rows = [await store.sandboxes.find(row[0]) for row in store._reader.rows("SELECT id FROM sandboxes")]
        acknowledged = (directory / "acknowledged").read_text() if (directory / "acknowledged").exists() else ""
        for row in rows:
            assert row is not None
            assert row.held_by is None
            if row.state is State.SUSPENDED:
                snapshot = await store.snapshots.find(row.snapshot_id or "")
                assert snapshot is not None
                assert snapshot.state is SnapshotState.READY
                memory = node.objects[snapshot.manifest or ""].memory
            elif row.state is State.FAILED:
                assert (row.restorable, row.reason) == (True, "runtime_exited"), "killed before it was recovered"
                memory = node.objects[(await store.snapshots.find(row.snapshot_id or "")).manifest or ""].memory  # type: ignore[union-attr]
            else:
                assert row.state in (State.RUNNING, State.PAUSED)
                assert node.machines[row.id] == row.generation
                assert node.is_stopped(row.id) == (row.state is State.PAUSED)
                memory = node.memory[row.id]
            if row.id in acknowledged:
                assert memory == {"n": 1}, "nothing is lost"
            events = await store.events.read(row.id, after=0, limit=100)
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
        wanted = {row.id for row in rows if row and row.state in (State.RUNNING, State.PAUSED)}
        assert node.machines.keys() == wanted, "machines are exactly those that rows want"
        assert store._reader.rows("SELECT id FROM operations WHERE status <> 'succeeded'") == []
        assert store._reader.rows("SELECT id FROM snapshots WHERE state <> 'ready'") == []
    finally:
        await store.aclose()


async def _fail_to_suspend(directory: Path) -> None:
    node = DurableNode(directory / "node")
    async with control_plane(directory, node=node, lease_seconds=LEASE_SECONDS, max_attempts=1) as plane:
        sandbox = await plane.running()
        node.fail("upload", RuntimeError("a store that is well again when the next server looks"))
        await plane.done(plane.sandboxes.suspend(a_call(), sandbox.id))


@pytest.mark.parametrize(
    "point", ["suspend.before_failure", "suspend.undone", "node.resume.before", "node.resume.after"]
)
def test_a_suspend_that_was_given_up_is_not_published_by_the_next_server(point: str, tmp_path: Path) -> None:
    """The machine may have gone on since: a moment of before would lose what it did."""
    assert in_child(_fail_to_suspend(tmp_path), armed=f"{point}:kill") == -signal.SIGKILL
    assert in_child(_recover(tmp_path)) == 0
    asyncio.run(_check_given_up(tmp_path))


async def _check_given_up(directory: Path) -> None:
    node = DurableNode(directory / "node")
    store = open_store(directory / "space.db")
    try:
        ((sandbox_id, state),) = store._reader.rows("SELECT id, state FROM sandboxes")
        assert (state, node.machines, node.stopped) == ("running", {sandbox_id: 1}, set())
        assert (node.objects, node.checkpoints) == ({}, {})
        statuses = store._reader.rows("SELECT kind, status FROM operations ORDER BY id")
        assert statuses == [("create", "succeeded"), ("suspend", "failed")]
    finally:
        await store.aclose()

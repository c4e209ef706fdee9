"""Rows follow machines: what a node tells, and what it lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from space.control.observations import Observations, left_over, missing, unwanted
from space.core.command import CommandSpec
from space.core.errors import NodeUnreachable
from space.core.ids import ProcessId, SandboxId, SessionId
from space.core.lifecycle import Kind, State
from space.core.node import MachineRef
from space.core.operation import Status
from space.core.ports import ProcessOrder, SessionStatus
from space.testing.control_plane import ControlPlane, control_plane, principal
from space.testing.node import FakeNode

pytestmark = pytest.mark.anyio


class Watched:
    """Who keeps the processes, for these tests."""

    def __init__(self) -> None:
        self.statuses: list[SessionStatus] = []
        self.lost: list[tuple[MachineRef, str]] = []

    async def apply_status(self, status: SessionStatus) -> None:
        self.statuses.append(status)

    async def lose_all(self, ref: MachineRef, reason: str) -> None:
        self.lost.append((ref, reason))


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    async with control_plane(tmp_path) as plane:
        yield plane


@contextlib.asynccontextmanager
async def observing(plane: ControlPlane, watched: Watched, *, seconds: float = 0.02) -> AsyncIterator[Observations]:
    observations = Observations(plane.store, plane.node, plane.clock, watched, reconcile_seconds=seconds)
    task = asyncio.create_task(observations.run())
    try:
        yield observations
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def state_of(plane: ControlPlane, sandbox_id: SandboxId, state: State) -> None:
    async with asyncio.timeout(5):
        while (await plane.get(sandbox_id)).state is not state:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_machine_that_dies_fails_its_sandbox_with_the_reason(plane: ControlPlane) -> None:
    watched = Watched()
    sandbox = await plane.running()
    async with observing(plane, watched, seconds=60):
        await asyncio.sleep(0.02)
        plane.node.crash(sandbox.id, reason="oom")
        await state_of(plane, sandbox.id, State.FAILED)
    row = await plane.get(sandbox.id)
    assert (row.reason, row.held_by, row.restorable) == ("oom", None, False)
    assert watched.lost == [(MachineRef(sandbox.id, 1), "oom")]
    events = await plane.sandboxes.events(principal(), sandbox.id, after=2, limit=9)
    assert [(event.type, event.data["reason"], event.data["code"]) for event in events] == [
        ("machine.exited", "oom", 137)
    ]


async def test_an_exit_that_nobody_told_of_is_found(plane: ControlPlane) -> None:
    sandbox, other = await plane.running(), await plane.running()
    plane.node.crash(sandbox.id, is_seen=False)
    async with observing(plane, Watched()):
        await state_of(plane, sandbox.id, State.FAILED)
    assert (await plane.get(sandbox.id)).reason == "runtime_exited"
    assert (await plane.get(other.id)).state is State.RUNNING


async def test_a_machine_that_no_row_wants_is_removed(plane: ControlPlane) -> None:
    wanted = await plane.running()
    plane.node.machines[SandboxId("sbx" + "v" * 26)] = 3
    await Observations(plane.store, plane.node, plane.clock, Watched()).reconcile()
    assert plane.node.machines == {wanted.id: 1}


async def test_reconciling_while_sandboxes_come_and_go_judges_none_wrongly(plane: ControlPlane) -> None:
    async with observing(plane, Watched(), seconds=0.001):
        for _ in range(5):
            made = await asyncio.gather(*(plane.running() for _ in range(8)))
            for sandbox in made:
                assert (await plane.get(sandbox.id)).state is State.RUNNING
            deletes = [await plane.delete(sandbox.id) for sandbox in made[::2]]
            for delete in deletes:
                assert (await plane.ended(delete)).status is Status.SUCCEEDED
    rows = plane.store._reader.rows("SELECT id, generation FROM sandboxes WHERE state = 'running'")
    assert dict(rows) == plane.node.machines
    assert len(rows) == 20
    assert not plane.store._reader.rows("SELECT 1 FROM sandboxes WHERE state = 'failed'")


async def test_a_slow_report_does_not_condemn_what_started_meanwhile(plane: ControlPlane) -> None:
    reported, go_on = asyncio.Event(), asyncio.Event()

    class Slow(FakeNode):
        async def report(self) -> dict[SandboxId, int]:
            report = dict(self.machines)
            reported.set()
            await go_on.wait()
            return report

    slow = Slow(node_id=plane.node.id)
    slow.machines = plane.node.machines
    reconciling = asyncio.create_task(Observations(plane.store, slow, plane.clock, Watched()).reconcile())
    await reported.wait()
    sandbox = await plane.running()
    go_on.set()
    await reconciling
    assert (await plane.get(sandbox.id)).state is State.RUNNING
    assert plane.node.machines == {sandbox.id: 1}


async def test_a_machine_that_came_up_just_before_the_report_is_not_unknown(plane: ControlPlane) -> None:
    made = []

    class Late(FakeNode):
        async def report(self) -> dict[SandboxId, int]:
            made.append(await plane.running())  # its row is committed after the first look at the rows
            return dict(self.machines)

    late = Late(node_id=plane.node.id)
    late.machines = plane.node.machines
    await Observations(plane.store, late, plane.clock, Watched()).reconcile()
    assert plane.node.machines == {made[0].id: 1}
    assert (await plane.get(made[0].id)).state is State.RUNNING


async def test_a_node_that_does_not_answer_fails_nothing(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await plane.running()

    async def unreachable() -> dict[SandboxId, int]:
        raise NodeUnreachable("away")

    async with observing(plane, Watched()):
        monkeypatch.setattr(plane.node, "report", unreachable)
        await asyncio.sleep(0.1)
        assert (await plane.get(sandbox.id)).state is State.RUNNING
        monkeypatch.undo()
        plane.node.crash(sandbox.id, is_seen=False)
        await state_of(plane, sandbox.id, State.FAILED)  # it goes on


async def test_what_journals_say_is_handed_on(plane: ControlPlane) -> None:
    watched = Watched()
    sandbox = await plane.running()
    order = ProcessOrder(process_id=ProcessId("prc1"), session_id=SessionId("ses1"), spec=CommandSpec(argv=("true",)))
    async with observing(plane, watched):
        await plane.node.start_process(MachineRef(sandbox.id, 1), order)
        plane.node.exit_process(order.session_id, 7)
        async with asyncio.timeout(5):
            while len(watched.statuses) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    assert [status.exit_code for status in watched.statuses] == [None, 7]


ONE, TWO = SandboxId("one"), SandboxId("two")


@pytest.mark.parametrize(
    ("row", "machine", "is_missing", "fate"),
    [
        ((1, State.RUNNING, None), 1, False, None),
        ((1, State.RUNNING, None), None, True, None),
        ((1, State.PAUSED, None), None, True, None),
        ((1, State.RUNNING, Kind.DELETE), None, False, None),
        ((2, State.RUNNING, Kind.DELETE), 1, False, None),
        ((1, State.PENDING, Kind.CREATE), None, False, None),
        ((1, State.PENDING, Kind.CREATE), 1, False, None),
        ((1, State.RUNNING, Kind.SUSPEND), None, False, None),
        ((2, State.SUSPENDED, Kind.WAKE), 1, False, None),
        ((1, State.FAILED, None), 1, False, "removed"),
        ((1, State.FAILED, None), None, False, None),
        ((1, State.SUSPENDED, None), 1, False, "released"),
        ((1, State.SUSPENDED, None), None, False, None),
        ((3, State.SUSPENDED, None), 2, False, "released"),
        ((2, State.RUNNING, None), 1, True, "released"),
        ((1, State.FAILED, Kind.RECOVER), 1, False, None),
        ((1, State.RUNNING, None), 2, True, None),  # newer than its row: a restored database
        (None, 1, False, "removed"),
    ],
)
def test_what_is_missing_and_what_is_not_wanted(
    row: tuple[int, State, Kind | None] | None, machine: int | None, is_missing: bool, fate: str | None
) -> None:
    desired = {ONE: row} if row else {}
    report = {ONE: machine} if machine else {}
    assert missing(desired, report) == ([ONE] if is_missing else [])
    found = [MachineRef(ONE, machine or 0)]
    assert unwanted(report, desired) == (found if fate == "removed" else [])
    assert left_over(report, desired) == (found if fate == "released" else [])

"""What time does to sandboxes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from space.control.activity import Activity
from space.control.reaper import KEPT_RUNNING, PRINCIPAL, Reaper
from space.core.command import CommandSpec, Process, ProcessState
from space.core.errors import FailedPrecondition, NotFound
from space.core.ids import ProcessId, SessionId
from space.core.lifecycle import State
from space.core.node import MachineRef
from space.core.operation import Status
from space.core.ports import ProcessOrder
from space.core.sandbox import AutoLifecycle, OnIdle, Sandbox
from space.core.store import AuditFilter, NewProcess
from space.testing.clock import FakeClock
from space.testing.control_plane import ControlPlane, a_call, control_plane
from space.testing.rows import START, entry, new_id

pytestmark = pytest.mark.anyio


class Timed:
    """A control plane, its clock, and the reaper under test."""

    def __init__(self, plane: ControlPlane, clock: FakeClock) -> None:
        self.plane = plane
        self.clock = clock
        self.activity = Activity(plane.store, clock)
        self.reaper = Reaper(plane.store, plane.node, clock, plane.worker, activity=self.activity)

    async def reap(self) -> None:
        """Do a round, and let what it began end."""
        await self.reaper.reap()
        await self.plane.idle()


@pytest.fixture
async def timed(tmp_path: Path) -> AsyncIterator[Timed]:
    clock = FakeClock()
    async with control_plane(tmp_path, clock=clock) as plane:
        yield Timed(plane, clock)


async def test_a_sandbox_is_deleted_at_the_end_of_its_lifetime_and_not_before(timed: Timed) -> None:
    sandbox = await timed.plane.running(auto_lifecycle=AutoLifecycle(max_lifetime_seconds=60))
    timed.clock.advance(59)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.RUNNING
    timed.clock.advance(1)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.DELETED
    assert timed.plane.node.machines == {}
    page = await timed.plane.store.audit.list(AuditFilter(principal=PRINCIPAL, target=sandbox.id), limit=9, cursor=None)
    assert [(entry.action, entry.details) for entry in page.items] == [("deleteSandbox", {"reason": "expired"})]


async def test_extending_keeps_it(timed: Timed) -> None:
    sandbox = await timed.plane.running(auto_lifecycle=AutoLifecycle(max_lifetime_seconds=60))
    timed.clock.advance(30)
    await timed.plane.sandboxes.extend(a_call(), sandbox.id, seconds=60)
    timed.clock.advance(59)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.RUNNING
    timed.clock.advance(1)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.DELETED


IDLE = AutoLifecycle(idle_seconds=60, on_idle=OnIdle.DELETE)


async def test_an_idle_sandbox_is_deleted_if_it_asked_for_that(timed: Timed) -> None:
    goes = await timed.plane.running(auto_lifecycle=IDLE)
    stays = await timed.plane.running(auto_lifecycle=AutoLifecycle(idle_seconds=60, on_idle=OnIdle.NONE))
    later = await timed.plane.running(auto_lifecycle=AutoLifecycle(idle_seconds=61, on_idle=OnIdle.DELETE))
    timed.clock.advance(60)
    await timed.reap()
    states = [(await timed.plane.get(sandbox.id)).state for sandbox in (goes, stays, later)]
    assert states == [State.DELETED, State.RUNNING, State.RUNNING]


async def test_activity_keeps_it_even_before_it_is_written(timed: Timed) -> None:
    sandbox = await timed.plane.running(auto_lifecycle=IDLE)
    timed.clock.advance(60)
    timed.activity.touch(sandbox.id)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.RUNNING
    await timed.activity.flush()
    timed.clock.advance(59)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.RUNNING
    timed.clock.advance(1)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.DELETED


async def test_a_request_in_flight_keeps_it_however_long_it_takes(timed: Timed) -> None:
    sandbox = await timed.plane.running(auto_lifecycle=IDLE)
    with timed.activity.using(sandbox.id):
        for _ in range(3):
            await timed.activity.flush()
            timed.clock.advance(61)
            await timed.reap()
            assert (await timed.plane.get(sandbox.id)).state is State.RUNNING
    await timed.activity.flush()
    timed.clock.advance(60)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.DELETED


@pytest.mark.parametrize("change", ["touch", "command", "extend", "keep"])
async def test_what_is_used_or_changed_after_the_look_is_not_deleted(
    timed: Timed, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_idle = change != "extend"
    lifecycle = IDLE if is_idle else AutoLifecycle(max_lifetime_seconds=60)
    sandbox = await timed.plane.running(auto_lifecycle=lifecycle)
    timed.clock.advance(60)
    sandboxes = timed.plane.store.sandboxes
    look = sandboxes.overdue

    async def look_and_change(*arguments: object, **options: object) -> object:
        found = await look(*arguments, **options)  # type: ignore[arg-type]
        assert [reason for _, _, reason in found] == ["idle" if is_idle else "expired"]
        match change:
            case "touch":
                await sandboxes.touch({sandbox.id: timed.clock.now()})
            case "command":
                await recorded_process(timed, sandbox)
            case "extend":
                await timed.plane.sandboxes.extend(a_call(), sandbox.id, seconds=60)
            case "keep":
                kept = AutoLifecycle(idle_seconds=60, on_idle=OnIdle.NONE)
                await timed.plane.sandboxes.update(a_call(), sandbox.id, metadata=None, auto_lifecycle=kept)
        return found

    monkeypatch.setattr(sandboxes, "overdue", look_and_change)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.RUNNING


SLEEPY = AutoLifecycle(idle_seconds=60, on_idle=OnIdle.SUSPEND)
NAPPING = AutoLifecycle(idle_seconds=60, on_idle=OnIdle.PAUSE)


@pytest.mark.parametrize(("lifecycle", "state"), [(SLEEPY, State.SUSPENDED), (NAPPING, State.PAUSED)])
async def test_an_idle_sandbox_comes_to_the_rest_that_it_asked_for_and_stays_there(
    timed: Timed, lifecycle: AutoLifecycle, state: State
) -> None:
    sandbox = await timed.plane.running(auto_lifecycle=lifecycle)
    for _ in range(3):
        timed.clock.advance(60)
        await timed.reap()
        assert (await timed.plane.get(sandbox.id)).state is state
    page = await timed.plane.store.audit.list(AuditFilter(principal=PRINCIPAL, target=sandbox.id), limit=9, cursor=None)
    action = "suspendSandbox" if state is State.SUSPENDED else "pauseSandbox"
    assert [(entry.action, entry.details) for entry in page.items] == [(action, {"reason": "idle"})]


async def test_by_default_a_sandbox_is_suspended_after_six_hours(timed: Timed) -> None:
    sandbox = await timed.plane.running()
    timed.clock.advance(6 * 3600 - 1)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.RUNNING
    timed.clock.advance(1)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.SUSPENDED


async def test_a_paused_sandbox_that_nobody_wants_is_suspended(timed: Timed) -> None:
    sandbox = await timed.plane.running(auto_lifecycle=SLEEPY)
    await timed.plane.done(timed.plane.sandboxes.pause(a_call(), sandbox.id))
    timed.clock.advance(60)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.SUSPENDED
    assert timed.plane.node.machines == {}


async def test_use_that_only_the_node_knows_of_cancels_the_suspend_until_it_is_long_ago(timed: Timed) -> None:
    sandbox = await timed.plane.running(auto_lifecycle=SLEEPY)
    used_at = timed.clock.now() + timedelta(seconds=45)
    timed.clock.advance(60)
    timed.plane.node.used[sandbox.id] = used_at  # after what the row says, and before the checkpoint
    await timed.reap()
    row = await timed.plane.get(sandbox.id)
    assert (row.state, row.held_by, row.last_active_at) == (State.RUNNING, None, used_at)
    assert not timed.plane.node.is_stopped(sandbox.id)
    timed.clock.advance(44)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.RUNNING
    timed.clock.advance(1)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.SUSPENDED


async def test_what_happens_just_before_the_suspend_is_in_it(timed: Timed) -> None:
    sandbox = await timed.plane.running(auto_lifecycle=SLEEPY)
    timed.clock.advance(60)
    timed.plane.node.memory[sandbox.id]["late"] = "written"
    await timed.reap()
    await timed.plane.done(timed.plane.sandboxes.wake(a_call(), sandbox.id))
    assert timed.plane.node.memory[sandbox.id] == {"late": "written"}


async def test_a_suspend_that_fails_is_tried_again_ever_more_seldom(timed: Timed) -> None:
    sandbox = await timed.plane.running(auto_lifecycle=SLEEPY)
    timed.clock.advance(60)
    timed.plane.node.fail("checkpoint", *[FailedPrecondition("a device is open")] * 100)
    counts = []
    for _ in range(8):
        for _ in range(12):  # a minute
            await timed.reap()
            timed.clock.advance(5)
        rows = timed.plane.store._reader.rows("SELECT 1 FROM operations WHERE kind = 'suspend'")
        counts.append(len(rows))
    assert counts == [2, 3, 3, 4, 4, 4, 4, 5]
    assert (await timed.plane.get(sandbox.id)).state is State.RUNNING
    timed.plane.node.fail("checkpoint")
    timed.clock.advance(3600)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.SUSPENDED


async def test_sandboxes_that_cannot_rest_do_not_keep_others_from_it(timed: Timed) -> None:
    for _ in range(120):
        await timed.plane.running(auto_lifecycle=SLEEPY)
    timed.clock.advance(1)
    other = await timed.plane.running(auto_lifecycle=SLEEPY)
    timed.clock.advance(60)
    timed.plane.node.fail("checkpoint", *[FailedPrecondition("a device is open")] * 120)
    for _ in range(2):
        await timed.reap()
        timed.clock.advance(5)
    assert (await timed.plane.get(other.id)).state is State.SUSPENDED


async def test_a_runtime_that_cannot_save_leaves_the_sandbox_running_and_says_why_once(timed: Timed) -> None:
    sandbox = await timed.plane.running(auto_lifecycle=SLEEPY)
    reasons = {"memory_snapshot": "runsc is too old; install 20250101 or later"}
    node = timed.plane.node
    node.runtime = replace(node.runtime, memory_snapshot=False, reasons=reasons)
    for _ in range(50):
        timed.clock.advance(60)
        await timed.reap()
    again = Reaper(timed.plane.store, node, timed.clock, timed.plane.worker)
    await again.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.RUNNING
    events = await timed.plane.store.events.read(sandbox.id, after=0, limit=100)
    told = [event for event in events if event.type == KEPT_RUNNING]
    assert len(told) == 1
    assert "install 20250101" in told[0].data["message"]


async def recorded_process(timed: Timed, sandbox: Sandbox) -> Process:
    """Record a process that nobody has started."""
    process = Process(
        id=ProcessId(new_id("prc")),
        session_id=SessionId(new_id("ses")),
        sandbox_id=sandbox.id,
        project_id=sandbox.project_id,
        generation=0,
        spec=CommandSpec(argv=("sleep", "1000")),
        state=ProcessState.CREATED,
        created_at=timed.clock.now(),
    )
    return await timed.plane.store.processes.create(NewProcess(process=process, token=None, audit=entry()))


async def running_process(timed: Timed, sandbox: Sandbox) -> SessionId:
    """Record a process and start it on the node."""
    made = await recorded_process(timed, sandbox)
    order = ProcessOrder(process_id=made.id, session_id=made.session_id, spec=made.spec)
    status = await timed.plane.node.start_process(MachineRef(sandbox.id, made.generation), order)
    await timed.plane.store.processes.observe(status)
    return made.session_id


async def test_output_keeps_an_idle_sandbox_and_silence_does_not(timed: Timed) -> None:
    sandbox = await timed.plane.running(auto_lifecycle=IDLE)
    session_id = await running_process(timed, sandbox)
    for _ in range(3):
        timed.plane.node.write_output(session_id, b"still here")
        timed.clock.advance(60)
        await timed.reap()
        assert (await timed.plane.get(sandbox.id)).state is State.RUNNING
    timed.clock.advance(60)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.DELETED
    (process,) = (await timed.plane.store.processes.list(sandbox.id, ended_after=START, limit=9, cursor=None)).items
    assert (process.state, process.reason) == (ProcessState.LOST, "sandbox_deleted")


async def test_deleted_sandboxes_are_forgotten_after_a_day(timed: Timed) -> None:
    sandbox = await timed.plane.running()
    delete = await timed.plane.delete(sandbox.id)
    assert (await timed.plane.ended(delete)).status is Status.SUCCEEDED
    timed.clock.advance(24 * 3600)
    await timed.reap()
    assert (await timed.plane.get(sandbox.id)).state is State.DELETED
    timed.clock.advance(1)
    await timed.reap()
    with pytest.raises(NotFound):
        await timed.plane.get(sandbox.id)


async def test_a_sandbox_that_is_being_deleted_already_is_left_alone(timed: Timed) -> None:
    sandbox = await timed.plane.running(auto_lifecycle=AutoLifecycle(max_lifetime_seconds=1))
    timed.plane.node.remove_failures = [RuntimeError("later")]
    delete = await timed.plane.delete(sandbox.id)
    await timed.reap()
    timed.clock.advance(5)
    await timed.reap()
    assert (await timed.plane.ended(delete)).status is Status.SUCCEEDED
    operations = timed.plane.store._reader.rows("SELECT kind FROM operations WHERE sandbox_id = ?", (sandbox.id,))
    assert sorted(operations) == [("create",), ("delete",)]


async def test_a_round_that_fails_does_not_end_the_reaper(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await timed.plane.running(auto_lifecycle=AutoLifecycle(max_lifetime_seconds=1))
    overdue = timed.plane.store.sandboxes.overdue

    async def failing(*_args: object, **_options: object) -> object:
        raise OSError("the disk is away")

    monkeypatch.setattr(timed.plane.store.sandboxes, "overdue", failing)
    task = asyncio.create_task(timed.reaper.run())
    await asyncio.sleep(0.02)
    monkeypatch.setattr(timed.plane.store.sandboxes, "overdue", overdue)
    async with asyncio.timeout(10):
        while (await timed.plane.get(sandbox.id)).state is not State.DELETED:
            timed.clock.advance(5)
            await asyncio.sleep(0.01)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task

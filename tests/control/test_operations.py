"""The worker: what it drives, what it takes over, and how often it tries."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from space.control.operations import Worker
from space.control.steps import STEPS
from space.control.steps.step import StepContext
from space.core.errors import (
    CapacityUnavailable,
    GuestUnreachable,
    InsufficientStorage,
    NodeUnreachable,
    NotFound,
    RuntimeFailed,
    Unavailable,
    Unsupported,
)
from space.core.lifecycle import Kind, State
from space.core.operation import Operation, Status
from space.testing.clock import FakeClock
from space.testing.control_plane import OTHER_PROJECT, ControlPlane, control_plane, principal
from space.testing.node import FakeNode

pytestmark = pytest.mark.anyio


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    async with control_plane(tmp_path) as plane:
        yield plane


@contextlib.asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[None]:
    task = asyncio.create_task(worker.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], object], *, advancing: FakeClock | None = None, by: float = 0.5) -> None:
    """Wait for `condition`, turning the clock meanwhile."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)
            if advancing is not None:
                advancing.advance(by)


async def test_a_create_brings_a_machine_up_and_a_delete_takes_it_away(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    assert (sandbox.state, sandbox.started_at is not None) == (State.RUNNING, True)
    assert plane.node.machines == {sandbox.id: 1}
    assert (await plane.ended(await plane.delete(sandbox.id))).status is Status.SUCCEEDED
    assert plane.node.machines == {}


async def test_waiting_returns_at_once_when_it_ends_and_as_it_is_when_time_is_up(tmp_path: Path) -> None:
    node = FakeNode()
    node.gate = asyncio.Event()
    async with control_plane(tmp_path, node=node) as plane:
        _, operation = await plane.create()
        unfinished = await plane.operations.wait(principal(), operation.id, seconds=0.01)
        assert unfinished.status is Status.RUNNING
        waiters = [asyncio.create_task(plane.operations.wait(principal(), operation.id, seconds=60)) for _ in range(50)]
        await asyncio.sleep(0.02)
        node.gate.set()
        async with asyncio.timeout(4):  # less than the backstop: they were woken
            assert {(await waiter).status for waiter in waiters} == {Status.SUCCEEDED}


async def test_waiting_does_not_poll_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = FakeNode()
    node.gate = asyncio.Event()
    async with control_plane(tmp_path, node=node) as plane:
        _, operation = await plane.create()
        reads = 0
        find = plane.store.operations.find

        async def counted(operation_id: str) -> Operation | None:
            nonlocal reads
            reads += 1
            return await find(operation_id)

        monkeypatch.setattr(plane.store.operations, "find", counted)
        waiting = asyncio.create_task(plane.operations.wait(principal(), operation.id, seconds=60))
        await asyncio.sleep(0.3)
        node.gate.set()
        assert (await waiting).status is Status.SUCCEEDED
        assert reads == 2


async def test_an_operation_of_another_project_is_not_found(plane: ControlPlane) -> None:
    _, operation = await plane.create()
    stranger = principal(OTHER_PROJECT)
    with pytest.raises(NotFound):
        await plane.operations.get(stranger, operation.id)
    with pytest.raises(NotFound):
        await plane.operations.wait(stranger, operation.id, seconds=1)


async def test_a_caller_that_goes_away_does_not_stop_what_it_asked_for(plane: ControlPlane) -> None:
    for turns in range(6):  # cancelled at different moments: before, during and after the commit
        task = asyncio.create_task(plane.create())
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await plane.delete((await plane.running()).id)  # all that was handed in before is committed
    await plane.idle()
    rows = plane.store._reader.rows("SELECT state, held_by FROM sandboxes WHERE state <> 'deleted'")
    assert set(rows) <= {("running", None)}
    assert len(plane.node.machines) == len(rows)


# Failures


@pytest.mark.parametrize(
    ("error", "attempts", "reason", "code"),
    [
        (RuntimeFailed("no"), 3, "boot_failed", "internal"),
        (GuestUnreachable("silent"), 3, "boot_failed", "service_unavailable"),
        (CapacityUnavailable("full"), 3, "no_capacity", "capacity_unavailable"),
        (ValueError("a bug"), 3, "boot_failed", "internal"),
        (NotFound("the template is gone"), 1, "boot_failed", "not_found"),
        (Unsupported("no"), 1, "boot_failed", "unsupported"),
    ],
)
async def test_a_create_is_tried_a_few_times_and_then_fails_with_a_reason(
    tmp_path: Path, error: Exception, attempts: int, reason: str, code: str
) -> None:
    clock, node = FakeClock(), FakeNode()
    node.failures = [error] * 5
    async with control_plane(tmp_path, node=node, clock=clock) as plane:
        sandbox, operation = await plane.create()
        await until(lambda: plane.store._reader.row("SELECT 1 FROM sandboxes WHERE state = 'failed'"), advancing=clock)
        ended = await plane.operations.get(principal(), operation.id)
        assert (ended.status, ended.attempt) == (Status.FAILED, attempts)
        assert ended.error is not None
        assert ended.error["code"] == code
        assert "a bug" not in ended.error["message"]
        row = await plane.get(sandbox.id)
        assert (row.state, row.reason, row.held_by) == (State.FAILED, reason, None)
        assert node.machines == {}
        assert node.tombstones == {sandbox.id: 1}, "what may have been half-built is removed"
        node.failures = []
        delete = await plane.delete(sandbox.id)
        await until(lambda: node.tombstones[sandbox.id] == 2, advancing=clock)
        assert (await plane.ended(delete)).status is Status.SUCCEEDED


async def test_a_create_that_succeeds_the_second_time_is_running(tmp_path: Path) -> None:
    clock, node = FakeClock(), FakeNode()
    node.failures = [NodeUnreachable("a moment")]
    async with control_plane(tmp_path, node=node, clock=clock) as plane:
        sandbox, operation = await plane.create()
        await until(lambda: node.machines, advancing=clock)
        ended = await plane.ended(operation)
        assert (ended.status, ended.attempt, ended.error) == (Status.SUCCEEDED, 2, None)
        assert (await plane.get(sandbox.id)).state is State.RUNNING


async def test_a_machine_that_never_answers_fails_at_the_deadline(tmp_path: Path) -> None:
    node = FakeNode()
    node.gate = asyncio.Event()
    async with control_plane(tmp_path, node=node, create_deadline_seconds=0.05) as plane:
        sandbox, operation = await plane.create()
        ended = await plane.ended(operation)
        assert ended.status is Status.FAILED
        assert ended.error is not None
        assert ended.error["code"] == "deadline_exceeded"
        assert (await plane.get(sandbox.id)).reason == "boot_timeout"


async def test_a_create_is_not_tried_again_after_its_deadline(tmp_path: Path) -> None:
    clock, node = FakeClock(), FakeNode()
    node.gate = asyncio.Event()
    async with control_plane(tmp_path, node=node, clock=clock, create_deadline_seconds=60) as plane:
        _, operation = await plane.create()
        await node.entered.wait()
        clock.advance(61)
        node.tombstones[operation.sandbox_id] = 9  # the attempt under way fails now
        node.gate.set()
        ended = await plane.ended(operation)
        assert (ended.status, ended.attempt) == (Status.FAILED, 1)


async def test_a_delete_is_tried_until_it_succeeds(tmp_path: Path) -> None:
    clock, node = FakeClock(), FakeNode()
    async with control_plane(tmp_path, node=node, clock=clock) as plane:
        sandbox = await plane.running()
        node.remove_failures = [NodeUnreachable("away")] * 25
        delete = await plane.delete(sandbox.id)
        await until(lambda: not node.machines, advancing=clock, by=5)
        ended = await plane.ended(delete)
        assert (ended.status, ended.attempt) == (Status.SUCCEEDED, 26)
        assert (await plane.get(sandbox.id)).state is State.DELETED


async def test_a_store_that_fails_at_the_end_does_not_fail_the_create(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine runs; only the row could not be written.  Whoever claims it next writes it."""
    clock = FakeClock()
    async with control_plane(tmp_path, clock=clock) as plane:
        finish = plane.store.operations.finish
        failures = iter([InsufficientStorage("full"), Unavailable("locked")])

        async def failing(operation: Operation, outcome: object) -> object:
            for failure in failures:
                raise failure
            return await finish(operation, outcome)  # type: ignore[arg-type]

        monkeypatch.setattr(plane.store.operations, "finish", failing)
        sandbox, operation = await plane.create()
        await until(
            lambda: plane.store._reader.row("SELECT 1 FROM sandboxes WHERE state = 'running'"), advancing=clock, by=3
        )
        ended = await plane.ended(operation)
        assert (ended.status, ended.attempt) == (Status.SUCCEEDED, 3)
        assert plane.node.started == [type(plane.node.started[0])(sandbox.id, 1)], "it was started once"


# Leases


class Trail:
    """Steps that write down who ran them."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.blocked_at: str | None = None
        self.blocked = asyncio.Event()

    async def first(self, context: StepContext) -> None:
        await self._run("first")

    async def second(self, context: StepContext) -> None:
        await self._run("second")

    async def third(self, context: StepContext) -> None:
        await self._run("third")

    async def _run(self, name: str) -> None:
        self.ran.append(name)
        if name == self.blocked_at:
            self.blocked.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize("dies_in", ["first", "second", "third"])
async def test_a_worker_that_dies_is_succeeded_at_the_first_unfinished_step(tmp_path: Path, dies_in: str) -> None:
    clock, trail = FakeClock(), Trail()
    steps = {**STEPS, Kind.CREATE: (trail.first, trail.second, trail.third)}
    trail.blocked_at = dies_in
    async with control_plane(tmp_path, clock=clock, steps=steps) as plane:
        _, operation = await plane.create()
        await trail.blocked.wait()
    # the server is gone; another opens the same database
    trail.blocked_at = None
    before = len(trail.ran)
    async with control_plane(tmp_path, clock=clock, steps=steps) as plane:
        await until(lambda: trail.ran[-1] == "third" and len(trail.ran) > before, advancing=clock)
        ended = await plane.ended(operation)
        assert ended.status is Status.SUCCEEDED
    names = ["first", "second", "third"]
    assert trail.ran == [*names[: names.index(dies_in) + 1], *names[names.index(dies_in) :]]


async def test_a_lease_is_renewed_while_the_step_takes_long(tmp_path: Path) -> None:
    clock, node = FakeClock(), FakeNode()
    node.gate = asyncio.Event()
    async with control_plane(tmp_path, node=node, clock=clock, lease_seconds=15) as plane:
        _, operation = await plane.create()
        await node.entered.wait()
        other = Worker(plane.store, node, clock, owner="other", steps=STEPS)
        async with working(other):
            for _ in range(30):  # three minutes
                clock.advance(6)
                renewed = "SELECT 1 FROM operations WHERE lease_until >= ?"
                enough = int((clock.now().timestamp() + 9) * 1000)
                await until(lambda: plane.store._reader.row(renewed, (enough,)), advancing=clock, by=0.001)  # noqa: B023
            assert (await plane.operations.get(principal(), operation.id)).attempt == 1
            node.gate.set()
            assert (await plane.ended(operation)).status is Status.SUCCEEDED


async def test_a_worker_whose_lease_was_taken_stops_and_writes_nothing(tmp_path: Path) -> None:
    clock, node = FakeClock(), FakeNode()
    node.gate = asyncio.Event()
    async with control_plane(tmp_path, node=node, clock=clock) as plane:
        sandbox, operation = await plane.create()
        await node.entered.wait()
        taken = await plane.store.operations.claim(
            Worker(plane.store, node, clock, owner="other").lease(), now=operation.lease_until, limit=1
        )
        assert [row.id for row in taken] == [operation.id]
        node.gate.set()
        await asyncio.sleep(0.05)
        row = await plane.operations.get(principal(), operation.id)
        assert (row.status, row.lease_owner) == (Status.RUNNING, "other")
        assert (await plane.get(sandbox.id)).state is State.PENDING


async def test_the_renewer_stops_a_worker_that_was_preempted(tmp_path: Path) -> None:
    clock, node = FakeClock(), FakeNode()
    node.gate = asyncio.Event()
    async with control_plane(tmp_path, node=node, clock=clock) as plane:
        sandbox, _ = await plane.create()
        await node.entered.wait()
        await plane.delete(sandbox.id)
        await until(lambda: not plane.worker._driven, advancing=clock, by=5)  # the gate never opens


async def test_two_workers_share_what_a_third_left_and_run_nothing_twice(tmp_path: Path) -> None:
    clock = FakeClock()
    counts = itertools.count()

    async def start(context: StepContext) -> None:
        next(counts)
        await asyncio.sleep(0)

    steps = {**STEPS, Kind.CREATE: (start,)}
    node = FakeNode()
    async with control_plane(tmp_path, clock=clock, node=node, steps={Kind.CREATE: (_forever,)}) as plane:
        for _ in range(30):
            await plane.create()
    async with control_plane(tmp_path, clock=clock, node=node, steps=steps) as plane:
        other = Worker(plane.store, node, clock, owner="other", steps=steps, poll_seconds=0.02)
        async with working(other):
            await until(
                lambda: not plane.store._reader.row("SELECT 1 FROM operations WHERE status <> 'succeeded'"),
                advancing=clock,
                by=0.02,
            )
    assert next(counts) == 30


async def _forever(context: StepContext) -> None:
    await asyncio.Event().wait()


async def test_an_operation_that_kills_every_server_fails_in_the_end(tmp_path: Path) -> None:
    async with control_plane(tmp_path, steps={**STEPS, Kind.CREATE: (_forever,)}) as plane:
        sandbox, operation = await plane.create()
    for number in range(2, 11):  # each finds it unfinished and dies over it
        async with control_plane(tmp_path, steps={**STEPS, Kind.CREATE: (_forever,)}) as plane:
            claimed = "SELECT 1 FROM operations WHERE attempt = ?"
            await until(lambda: plane.store._reader.row(claimed, (number,)))  # noqa: B023  awaited here
    async with control_plane(tmp_path) as plane:
        assert (await plane.ended(operation)).status is Status.FAILED
        assert (await plane.get(sandbox.id)).state is State.FAILED


async def test_nothing_is_admitted_while_the_worker_does_not_run(tmp_path: Path) -> None:
    async with control_plane(tmp_path, is_working=False) as plane:
        with pytest.raises(Unavailable):
            await plane.create()
        assert plane.store._reader.rows("SELECT id FROM sandboxes") == []


def test_every_kind_has_steps() -> None:
    assert STEPS.keys() == set(Kind)
    names = [step.__name__ for steps in STEPS.values() for step in steps]
    assert all(len(set(steps)) == len(steps) for steps in STEPS.values()), names

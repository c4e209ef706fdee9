"""Pause, suspend, wake, fork, snapshots, recover: what they promise, and what stays as it was when they fail."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from space.control.observations import Observations
from space.core.errors import (
    CapacityUnavailable,
    FailedPrecondition,
    GuestUnreachable,
    InsufficientStorage,
    InvalidRequest,
    InvalidTransition,
    NotFound,
    OperationInProgress,
    PermissionDenied,
    RuntimeFailed,
    SpaceError,
    Unavailable,
    Unsupported,
)
from space.core.ids import PooledId, ProjectId, SnapshotId
from space.core.lifecycle import Admission, State
from space.core.node import MachineRef
from space.core.operation import Operation, Status
from space.core.pool import PooledMachine, PooledState, PoolKey, PoolOrder
from space.core.sandbox import AutoLifecycle, Resources, Sandbox, SandboxSpec
from space.core.snapshot import Purpose, SnapshotOrder, SnapshotRef, SnapshotState
from space.core.store import SandboxFilter
from space.testing.clock import FakeClock
from space.testing.control_plane import OTHER_PROJECT, ControlPlane, NoProcesses, a_call, control_plane, principal
from space.testing.node import FakeNode
from space.testing.rows import new_id
from space.testing.templates import BASE

pytestmark = pytest.mark.anyio


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    async with control_plane(tmp_path, max_attempts=1) as plane:
        yield plane


async def reconcile(plane: ControlPlane) -> None:
    await Observations(plane.store, plane.node, plane.clock, NoProcesses()).reconcile()


async def failed(plane: ControlPlane, operation: Operation) -> str:
    ended = await plane.ended(operation)
    assert ended.status is Status.FAILED, ended
    assert ended.error is not None
    return str(ended.error["code"])


# Pause and wake


async def test_a_paused_sandbox_goes_on_where_it_was(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    plane.node.memory[sandbox.id]["n"] = 1
    await plane.done(plane.sandboxes.pause(a_call(), sandbox.id))
    assert (await plane.get(sandbox.id)).state is State.PAUSED
    assert plane.node.is_stopped(sandbox.id)
    await plane.done(plane.sandboxes.wake(a_call(), sandbox.id))
    row = await plane.get(sandbox.id)
    assert (row.state, row.generation) == (State.RUNNING, 1)
    assert plane.node.memory[sandbox.id] == {"n": 1}
    assert not plane.node.is_stopped(sandbox.id)


@pytest.mark.parametrize("rest", ["pause", "suspend"])
async def test_resting_and_waking_without_delay_always_ends_running(plane: ControlPlane, rest: str) -> None:
    sandboxes = [await plane.running() for _ in range(5)]

    async def cycle(sandbox: Sandbox) -> None:
        for _ in range(10):
            ask = plane.sandboxes.pause if rest == "pause" else plane.sandboxes.suspend
            await plane.done(ask(a_call(), sandbox.id))
            await plane.done(plane.sandboxes.wake(a_call(), sandbox.id))
            assert plane.node.machines[sandbox.id] == (await plane.get(sandbox.id)).generation
            assert not plane.node.is_stopped(sandbox.id)

    await asyncio.gather(*(cycle(sandbox) for sandbox in sandboxes))
    for sandbox in sandboxes:
        assert (await plane.ended(await plane.delete(sandbox.id))).status is Status.SUCCEEDED
    assert plane.node.machines == {}


async def test_a_paused_sandbox_whose_machine_dies_fails_at_the_next_look_and_can_be_deleted(
    plane: ControlPlane,
) -> None:
    sandbox = await plane.running()
    await plane.done(plane.sandboxes.pause(a_call(), sandbox.id))
    plane.node.crash(sandbox.id, is_seen=False)
    await reconcile(plane)
    row = await plane.get(sandbox.id)
    assert (row.state, row.reason, row.restorable) == (State.FAILED, "runtime_exited", False)
    assert (await plane.ended(await plane.delete(sandbox.id))).status is Status.SUCCEEDED
    await reconcile(plane)
    assert (await plane.get(sandbox.id)).state is State.DELETED


@pytest.mark.parametrize("method", ["pause", "resume"])
async def test_a_pause_or_its_end_that_fails_leaves_the_sandbox_as_it_was(plane: ControlPlane, method: str) -> None:
    sandbox = await plane.running()
    if method == "resume":
        await plane.done(plane.sandboxes.pause(a_call(), sandbox.id))
    before = await plane.get(sandbox.id)
    plane.node.fail(method, GuestUnreachable("silent"))
    ask = plane.sandboxes.pause if method == "pause" else plane.sandboxes.wake
    assert await failed(plane, (await ask(a_call(), sandbox.id)).operation) == "service_unavailable"
    assert (await plane.get(sandbox.id)).state is before.state
    assert plane.node.is_stopped(sandbox.id) == (method == "resume")
    await plane.done(ask(a_call(), sandbox.id))


# Suspend and wake


async def test_five_cycles_keep_all_that_was_before_each(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    for cycle in range(5):
        plane.node.memory[sandbox.id][f"cycle_{cycle}"] = cycle
        await plane.done(plane.sandboxes.suspend(a_call(), sandbox.id))
        await plane.idle()
        assert plane.node.machines == {}
        assert (await plane.get(sandbox.id)).state is State.SUSPENDED
        await plane.done(plane.sandboxes.wake(a_call(), sandbox.id))
        assert plane.node.memory[sandbox.id] == {f"cycle_{n}": n for n in range(cycle + 1)}
    assert (await plane.get(sandbox.id)).generation == 6


async def test_a_second_suspend_uploads_only_what_changed_and_shows_it(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    plane.node.memory[sandbox.id] |= {str(n): n for n in range(100)}
    first = await plane.done(plane.sandboxes.suspend(a_call(), sandbox.id))
    await plane.done(plane.sandboxes.wake(a_call(), sandbox.id))
    plane.node.memory[sandbox.id]["one"] = "more"
    second = await plane.done(plane.sandboxes.suspend(a_call(), sandbox.id))
    shown = [
        [operation.progress[name] for name in ("bytes_read", "bytes_new", "bytes_uploaded")]
        for operation in (first, second)
    ]
    assert shown == [[101, 101, 101], [102, 1, 1]]
    assert second.step == "upload_snapshot"


async def test_a_suspended_sandbox_has_a_durable_snapshot_and_its_chunks_are_pinned(plane: ControlPlane) -> None:
    sandbox = await plane.suspended()
    assert sandbox.snapshot_id is not None
    snapshot = await plane.sandboxes.get_snapshot(principal(), sandbox.snapshot_id)
    assert (snapshot.state, snapshot.purpose) == (SnapshotState.READY, Purpose.SUSPEND)
    assert snapshot.manifest in plane.node.objects
    until = plane.clock.now() + timedelta(seconds=60)
    pinned = await plane.store.snapshots.begin_collection(sandbox.project_id, until=until, now=plane.clock.now())
    assert pinned == plane.node.objects[snapshot.manifest or ""].chunks


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize(
    ("method", "error", "code"),
    [
        ("checkpoint", FailedPrecondition("a device is open"), "failed_precondition"),
        ("checkpoint", InsufficientStorage("full"), "insufficient_storage"),
        ("checkpoint", RuntimeFailed("no"), "internal"),
        ("upload", Unavailable("no store"), "service_unavailable"),
        ("upload", NotFound("no checkpoint"), "not_found"),
    ],
)
@pytest.mark.parametrize("kind", ["suspend", "snapshot", "fork"])
async def test_a_save_that_fails_leaves_the_sandbox_as_it_was_and_nothing_on_the_disk(
    plane: ControlPlane, kind: str, method: str, error: Exception, code: str, is_paused: bool
) -> None:
    sandbox = await plane.running()
    if is_paused:
        await plane.done(plane.sandboxes.pause(a_call(), sandbox.id))
    plane.node.fail(method, error)
    match kind:
        case "suspend":
            operation = (await plane.sandboxes.suspend(a_call(), sandbox.id)).operation
        case "snapshot":
            operation = (await plane.sandboxes.snapshot(a_call(), sandbox.id, None)).operation
        case _:
            operation = (await plane.sandboxes.fork(a_call(), sandbox.id)).changed.operation
    assert await failed(plane, operation) == code
    row = await plane.get(sandbox.id)
    assert (row.state, row.held_by, row.reason) == (State.PAUSED if is_paused else State.RUNNING, None, None)
    assert plane.node.is_stopped(sandbox.id) is is_paused
    assert (plane.node.checkpoints, plane.node.objects) == ({}, {})
    await plane.done(plane.sandboxes.suspend(a_call(), sandbox.id))


async def test_a_store_that_fails_for_a_while_delays_a_suspend_and_the_machine_stands_still(tmp_path: Path) -> None:
    clock, node = FakeClock(), FakeNode()
    async with control_plane(tmp_path, node=node, clock=clock) as plane:
        sandbox = await plane.running()
        node.fail("upload", Unavailable("no store"), Unavailable("no store"))
        operation = (await plane.sandboxes.suspend(a_call(), sandbox.id)).operation
        async with asyncio.timeout(10):
            while node.failures_left("upload") == 2:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            while node.failures_left("upload"):
                assert node.is_stopped(sandbox.id), "else it would go on after the moment that is saved"
                clock.advance(0.5)
                await asyncio.sleep(0.002)
            while not (await plane.operations.get(principal(), operation.id)).status.is_final:
                clock.advance(0.5)
                await asyncio.sleep(0.002)
        assert (await plane.get(sandbox.id)).state is State.SUSPENDED


async def test_a_machine_that_cannot_go_on_yet_after_a_failed_suspend_holds_the_operation_open(tmp_path: Path) -> None:
    clock, node = FakeClock(), FakeNode()
    async with control_plane(tmp_path, node=node, clock=clock, max_attempts=1) as plane:
        sandbox = await plane.running()
        node.fail("upload", Unavailable("no store"))
        node.fail("resume", *[Unavailable("the node is away")] * 3)
        operation = (await plane.sandboxes.suspend(a_call(), sandbox.id)).operation
        async with asyncio.timeout(10):
            while not (await plane.operations.get(principal(), operation.id)).status.is_final:
                is_held = (await plane.get(sandbox.id)).held_by is not None
                assert is_held or not node.is_stopped(sandbox.id), "shown as running, and it stands still"
                clock.advance(0.5)
                await asyncio.sleep(0.002)
        assert await failed(plane, operation) == "service_unavailable"
        assert not node.is_stopped(sandbox.id)
        assert node.objects == {}, "the upload was not tried again: the machine has gone on"


@pytest.mark.parametrize("error", [CapacityUnavailable("full"), Unavailable("no store"), RuntimeFailed("no")])
async def test_a_wake_that_fails_leaves_it_suspended_and_the_next_wake_works(
    plane: ControlPlane, error: Exception
) -> None:
    sandbox = await plane.running()
    plane.node.memory[sandbox.id]["n"] = 1
    for _ in range(2):
        await plane.done(plane.sandboxes.suspend(a_call(), sandbox.id))
        plane.node.failures = [error]
        await failed(plane, (await plane.sandboxes.wake(a_call(), sandbox.id)).operation)
        row = await plane.get(sandbox.id)
        assert (row.state, row.restorable, row.held_by) == (State.SUSPENDED, True, None)
        assert plane.node.tombstones == {}, "its commands must survive"
        await plane.done(plane.sandboxes.wake(a_call(), sandbox.id))
        assert plane.node.memory[sandbox.id] == {"n": 1}


async def test_a_release_that_was_lost_is_made_up_for(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    plane.node.fail("release", Unavailable("away"))
    await plane.done(plane.sandboxes.suspend(a_call(), sandbox.id))
    await plane.idle()
    assert plane.node.machines == {sandbox.id: 1}
    await reconcile(plane)
    assert (plane.node.machines, plane.node.tombstones) == ({}, {})
    await plane.done(plane.sandboxes.wake(a_call(), sandbox.id))


async def test_a_wake_does_not_wait_for_a_release_that_was_lost(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    plane.node.memory[sandbox.id]["n"] = 1
    plane.node.fail("release", Unavailable("away"))
    await plane.done(plane.sandboxes.suspend(a_call(), sandbox.id))
    await plane.done(plane.sandboxes.wake(a_call(), sandbox.id))
    await reconcile(plane)
    assert plane.node.machines == {sandbox.id: 2}
    assert plane.node.memory[sandbox.id] == {"n": 1}


async def test_asking_for_the_present_state_succeeds_and_for_the_goal_under_way_joins(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    assert (await plane.sandboxes.wake(a_call(), sandbox.id)).admission is Admission.SATISFIED
    gate = plane.node.hold("upload")
    first = await plane.sandboxes.suspend(a_call(), sandbox.id)
    await gate.entered.wait()
    second = await plane.sandboxes.suspend(a_call(), sandbox.id)
    assert (second.admission, second.operation.id) == (Admission.JOIN, first.operation.id)
    with pytest.raises(OperationInProgress) as caught:
        await plane.sandboxes.wake(a_call(), sandbox.id)
    assert caught.value.details["operation_id"] == first.operation.id
    gate.open()
    await plane.ended(first.operation)
    assert (await plane.sandboxes.suspend(a_call(), sandbox.id)).admission is Admission.SATISFIED
    with pytest.raises(InvalidTransition):
        await plane.sandboxes.pause(a_call(), sandbox.id)


async def test_a_lease_is_renewed_however_long_an_upload_takes(tmp_path: Path) -> None:
    clock, node = FakeClock(), FakeNode()
    async with control_plane(tmp_path, node=node, clock=clock, lease_seconds=15) as plane:
        sandbox = await plane.running()
        gate = node.hold("upload")
        operation = (await plane.sandboxes.suspend(a_call(), sandbox.id)).operation
        await gate.entered.wait()
        renewed = "SELECT 1 FROM operations WHERE id = ? AND lease_until >= ?"
        async with asyncio.timeout(20):
            for _ in range(60):  # five minutes
                clock.advance(5)
                enough = int((clock.now().timestamp() + 9) * 1000)
                while not plane.store._reader.row(renewed, (operation.id, enough)):
                    clock.advance(0.001)
                    await asyncio.sleep(0.001)
        gate.open()
        ended = await plane.ended(operation)
        assert (ended.status, ended.attempt) == (Status.SUCCEEDED, 1)


async def test_a_save_that_never_ends_fails_at_its_deadline(tmp_path: Path) -> None:
    node = FakeNode()
    async with control_plane(tmp_path, node=node, save_deadline_seconds=0.05) as plane:
        sandbox = await plane.running()
        gate = node.hold("upload")
        operation = (await plane.sandboxes.suspend(a_call(), sandbox.id)).operation
        assert await failed(plane, operation) == "deadline_exceeded"
        gate.open()
        assert (await plane.get(sandbox.id)).state is State.RUNNING
        assert not node.is_stopped(sandbox.id)


async def test_what_the_runtime_cannot_do_is_refused_with_the_remedy(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    reasons = {"memory_snapshot": "install something newer", "pause": "no cgroup"}
    plane.node.runtime = replace(plane.node.runtime, pause=False, memory_snapshot=False, reasons=reasons)
    for ask in (plane.sandboxes.suspend, plane.sandboxes.pause, plane.sandboxes.fork):
        with pytest.raises(Unsupported) as caught:
            await ask(a_call(), sandbox.id)
        assert caught.value.details["feature"] in reasons
        assert reasons[caught.value.details["feature"]] in caught.value.message
    assert (await plane.get(sandbox.id)).held_by is None


# Forks


async def children_of(plane: ControlPlane, sandbox: Sandbox, count: int, **options: object) -> list[Sandbox]:
    forked = await plane.sandboxes.fork(a_call("forkSandbox"), sandbox.id, count, **options)  # type: ignore[arg-type]
    assert (await plane.ended(forked.changed.operation)).status is Status.SUCCEEDED
    children = []
    for child in forked.children:
        assert isinstance(child, Sandbox)
        assert child.held_by is not None
        await plane.ended(await plane.operations.get(principal(), child.held_by))
        children.append(await plane.get(child.id))
    return children


@pytest.mark.parametrize("state", [State.RUNNING, State.PAUSED, State.SUSPENDED])
async def test_children_go_on_from_the_moment_of_their_source_which_stays_as_it_is(
    plane: ControlPlane, state: State
) -> None:
    source = await plane.running(env={"A": "1"}, metadata={"k": "v"}, resources=Resources(memory_mib=128))
    plane.node.memory[source.id]["n"] = 1
    if state is State.PAUSED:
        await plane.done(plane.sandboxes.pause(a_call(), source.id))
    if state is State.SUSPENDED:
        await plane.done(plane.sandboxes.suspend(a_call(), source.id))
    children = await children_of(plane, source, 3)
    assert (await plane.get(source.id)).state is state
    assert plane.node.is_stopped(source.id) == (state is State.PAUSED)
    for number, child in enumerate(children):
        assert (child.state, child.generation, child.restorable) == (State.RUNNING, 1, True)
        assert (child.env, child.metadata, child.resources) == (source.env, source.metadata, source.resources)
        assert plane.node.memory[child.id] == {"n": 1}
        plane.node.memory[child.id]["n"] = number
    assert [plane.node.memory[child.id]["n"] for child in children] == [0, 1, 2]
    assert len({child.id for child in children} | {source.id}) == 4


async def test_children_may_differ_from_their_source(plane: ControlPlane) -> None:
    source = await plane.running(env={"A": "1"}, metadata={"k": "v"})
    lifecycle = AutoLifecycle(max_lifetime_seconds=60)
    (child,) = await children_of(plane, source, 1, metadata={"k": "w"}, env={"A": "2"}, auto_lifecycle=lifecycle)
    assert (child.metadata, child.env, child.auto_lifecycle) == ({"k": "w"}, {"A": "2"}, lifecycle)
    assert child.expires_at == child.created_at + timedelta(seconds=60)


async def test_the_children_of_a_fork_start_at_once_and_not_at_the_next_poll(tmp_path: Path) -> None:
    async with control_plane(tmp_path, clock=FakeClock(), poll_seconds=1000) as plane:  # nobody turns the clock
        source = await plane.running()
        assert len(await children_of(plane, source, 100)) == 100


async def test_a_fork_for_five_with_room_for_three_makes_three_and_says_why_not_five(tmp_path: Path) -> None:
    node = FakeNode(memory_mib=4 * 512)
    async with control_plane(tmp_path, node=node) as plane:
        source = await plane.running()
        forked = await plane.sandboxes.fork(a_call("forkSandbox"), source.id, 5)
        made = [child for child in forked.children if isinstance(child, Sandbox)]
        refused = [child for child in forked.children if isinstance(child, SpaceError)]
        assert (len(made), [type(error) for error in refused]) == (3, [CapacityUnavailable] * 2)
        await plane.ended(forked.changed.operation)
        for child in made:
            await plane.ended(await plane.operations.get(principal(), child.held_by or ""))
            assert (await plane.get(child.id)).state is State.RUNNING
        assert (await plane.get(source.id)).state is State.RUNNING
        named = (await plane.operations.get(principal(), forked.changed.operation.id)).request["children"]
        assert len(named) == 5


@pytest.mark.parametrize("count", [0, 101])
async def test_a_fork_makes_1_to_100_children(plane: ControlPlane, count: int) -> None:
    sandbox = await plane.running()
    with pytest.raises(InvalidRequest):
        await plane.sandboxes.fork(a_call(), sandbox.id, count)


async def test_the_children_of_a_fork_that_fails_fail_with_it(plane: ControlPlane) -> None:
    source = await plane.running()
    plane.node.fail("checkpoint", FailedPrecondition("a device is open"))
    forked = await plane.sandboxes.fork(a_call(), source.id, 2)
    await failed(plane, forked.changed.operation)
    for child in forked.children:
        assert isinstance(child, Sandbox)
        row = await plane.get(child.id)
        assert (row.state, row.restorable) == (State.FAILED, False)
    assert (await plane.get(source.id)).state is State.RUNNING


# Named snapshots


async def test_a_snapshot_can_be_started_from_when_its_sandbox_is_gone(plane: ControlPlane) -> None:
    source = await plane.running(resources=Resources(memory_mib=128))
    plane.node.memory[source.id]["n"] = 1
    operation = await plane.done(plane.sandboxes.snapshot(a_call(), source.id, "base-1"))
    assert operation.snapshot_id is not None
    await plane.ended(await plane.delete(source.id))
    (listed,) = (await plane.sandboxes.list_snapshots(principal())).items
    assert (listed.id, listed.name, listed.state) == (operation.snapshot_id, "base-1", SnapshotState.READY)

    made = await plane.running(template=listed.id)
    assert plane.node.memory[made.id] == {"n": 1}
    assert (made.resources.memory_mib, made.template, made.runtime) == (128, listed.id, "fake")
    assert made.template_digest == source.template_digest
    with pytest.raises(InvalidRequest):
        await plane.create(template=listed.id, resources=Resources(memory_mib=256))
    with pytest.raises(InvalidRequest):
        await plane.create(template=listed.id, runtime="gvisor")
    await plane.running(template=listed.id, resources=Resources(memory_mib=128), runtime="fake")


async def test_a_snapshot_of_a_suspended_sandbox_is_the_moment_in_which_it_rests(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    plane.node.memory[sandbox.id]["n"] = 1
    await plane.done(plane.sandboxes.suspend(a_call(), sandbox.id))
    operation = await plane.done(plane.sandboxes.snapshot(a_call(), sandbox.id, None))
    assert (await plane.get(sandbox.id)).state is State.SUSPENDED
    made = await plane.running(template=operation.snapshot_id)
    assert plane.node.memory[made.id] == {"n": 1}
    await plane.done(plane.sandboxes.wake(a_call(), sandbox.id))


async def test_another_projects_snapshot_is_not_found_by_any_call(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    operation = await plane.done(plane.sandboxes.snapshot(a_call(), sandbox.id, "mine"))
    snapshot_id = operation.snapshot_id or ""
    stranger = principal(OTHER_PROJECT)
    with pytest.raises(NotFound):
        await plane.sandboxes.get_snapshot(stranger, snapshot_id)
    with pytest.raises(NotFound):
        await plane.sandboxes.delete_snapshot(a_call(who=stranger), snapshot_id)
    with pytest.raises(NotFound):
        await plane.sandboxes.create(a_call(who=stranger), SandboxSpec(template=snapshot_id))
    assert list((await plane.sandboxes.list_snapshots(stranger)).items) == []


async def test_a_token_bound_to_templates_may_not_start_from_snapshots_of_others(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    operation = await plane.done(plane.sandboxes.snapshot(a_call(), sandbox.id, None))
    spec = SandboxSpec(template=operation.snapshot_id or "")
    await plane.sandboxes.create(a_call(who=principal(templates=frozenset({"base"}))), spec)
    with pytest.raises(PermissionDenied):
        await plane.sandboxes.create(a_call(who=principal(templates=frozenset({"other"}))), spec)


async def test_the_snapshot_of_a_suspend_is_its_sandboxes_alone(plane: ControlPlane) -> None:
    sandbox = await plane.suspended()
    with pytest.raises(NotFound):
        await plane.create(template=sandbox.snapshot_id)


async def test_a_snapshot_that_a_sandbox_needs_cannot_be_deleted_and_others_can(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    first = await plane.done(plane.sandboxes.snapshot(a_call(), sandbox.id, None))
    with pytest.raises(FailedPrecondition):
        await plane.sandboxes.delete_snapshot(a_call(), first.snapshot_id or "")
    await plane.done(plane.sandboxes.snapshot(a_call(), sandbox.id, None))
    await plane.sandboxes.delete_snapshot(a_call("deleteSnapshot"), first.snapshot_id or "")
    assert len((await plane.sandboxes.list_snapshots(principal())).items) == 1


# Recover


async def test_a_lost_machine_comes_back_from_its_last_durable_moment_under_its_id(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    plane.node.memory[sandbox.id]["n"] = 1
    await plane.done(plane.sandboxes.snapshot(a_call(), sandbox.id, None))
    plane.node.memory[sandbox.id]["n"] = 2
    plane.node.crash(sandbox.id, is_seen=False)
    await reconcile(plane)
    row = await plane.get(sandbox.id)
    assert (row.state, row.restorable) == (State.FAILED, True)
    first = await plane.sandboxes.recover(a_call(), sandbox.id)
    second = await plane.sandboxes.recover(a_call(), sandbox.id)
    assert second.admission in (Admission.JOIN, Admission.SATISFIED)
    assert (await plane.ended(first.operation)).status is Status.SUCCEEDED
    third = await plane.sandboxes.recover(a_call(), sandbox.id)
    assert (third.admission, third.operation.status) == (Admission.SATISFIED, Status.SUCCEEDED)
    row = await plane.get(sandbox.id)
    assert (row.state, row.generation, row.reason) == (State.RUNNING, 2, None)
    assert plane.node.memory[sandbox.id] == {"n": 1}
    assert plane.node.machines == {sandbox.id: 2}


async def test_what_has_no_durable_state_cannot_be_recovered(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    plane.node.crash(sandbox.id, is_seen=False)
    await reconcile(plane)
    with pytest.raises(FailedPrecondition):
        await plane.sandboxes.recover(a_call(), sandbox.id)
    assert (await plane.get(sandbox.id)).held_by is None


async def test_a_recover_that_fails_leaves_it_failed_and_can_be_repeated(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    await plane.done(plane.sandboxes.snapshot(a_call(), sandbox.id, None))
    plane.node.crash(sandbox.id, is_seen=False)
    await reconcile(plane)
    plane.node.failures = [Unavailable("no store")]
    await failed(plane, (await plane.sandboxes.recover(a_call(), sandbox.id)).operation)
    row = await plane.get(sandbox.id)
    assert (row.state, row.reason, row.restorable) == (State.FAILED, "runtime_exited", True)
    await plane.done(plane.sandboxes.recover(a_call(), sandbox.id))


async def test_a_machine_that_dies_while_its_moment_is_uploaded_comes_back_from_that(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    plane.node.memory[sandbox.id]["n"] = 1
    gate = plane.node.hold("upload")
    operation = (await plane.sandboxes.suspend(a_call(), sandbox.id)).operation
    await gate.entered.wait()
    plane.node.crash(sandbox.id, is_seen=False)
    await plane.store.sandboxes.observe_exit(sandbox.id, 1, reason="oom", at=plane.clock.now(), data={})
    gate.open()
    await failed(plane, operation)
    await plane.idle()
    row = await plane.get(sandbox.id)
    assert (row.state, row.reason, row.restorable) == (State.FAILED, "oom", True)
    assert plane.node.checkpoints == {}
    await plane.done(plane.sandboxes.recover(a_call(), sandbox.id))
    assert plane.node.memory[sandbox.id] == {"n": 1}


async def test_a_machine_that_dies_before_its_moment_is_durable_fails_the_suspend_and_the_sandbox(
    plane: ControlPlane,
) -> None:
    sandbox = await plane.running()
    gate = plane.node.hold("upload")
    operation = (await plane.sandboxes.suspend(a_call(), sandbox.id)).operation
    await gate.entered.wait()
    plane.node.crash(sandbox.id, is_seen=False)
    await plane.store.sandboxes.observe_exit(sandbox.id, 1, reason="oom", at=plane.clock.now(), data={})
    plane.node.checkpoints.clear()
    gate.open()
    await failed(plane, operation)
    row = await plane.get(sandbox.id)
    assert (row.state, row.reason, row.restorable) == (State.FAILED, "oom", False)


# Keys


async def test_each_project_has_a_key_of_its_own_that_outlives_the_server(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        for project in (None, OTHER_PROJECT):
            call = a_call() if project is None else a_call(who=principal(project))
            sandbox, operation = await plane.sandboxes.create(call, SandboxSpec(template="base"))
            await plane.operations.wait(call.principal, operation.id, seconds=10)
            change = await plane.sandboxes.suspend(call, sandbox.id)
            await plane.operations.wait(call.principal, change.operation.id, seconds=10)
        keys = {moment.key for moment in plane.node.objects.values()}
        assert (len(keys), {len(key) for key in keys}) == (2, {32})
    async with control_plane(tmp_path, node=plane.node) as again:  # another server, the same sealed key
        await again.done(again.sandboxes.wake(a_call(), (await _mine(again)).id))


async def _mine(plane: ControlPlane) -> Sandbox:
    (sandbox,) = (await plane.sandboxes.list(principal(), SandboxFilter(), limit=9, cursor=None)).items
    return sandbox


def test_a_key_is_in_no_text_that_could_be_logged() -> None:
    key = b"k" * 32
    ref = SnapshotRef(snapshot_id=SnapshotId("snp"), project_id=ProjectId("prj"), manifest="0" * 64, key=key)
    order = SnapshotOrder(snapshot_id=SnapshotId("snp"), project_id=ProjectId("prj"), key=key, base=ref)
    assert "kkk" not in f"{ref!r} {order!r} {ref} {order}"


# Warm machines


async def parked(plane: ControlPlane, *, memory_mib: int = 512) -> PooledId:
    """Let a machine wait for a sandbox of the base template."""
    key = PoolKey(template_digest=BASE.digest, runtime="fake", resources=Resources(memory_mib=memory_mib))
    now = plane.clock.now()
    machine = PooledMachine(
        id=PooledId(new_id("mch")),
        node_id=plane.node.id,
        node_epoch=1,
        key=key,
        state=PooledState.STARTING,
        created_at=now,
    )
    await plane.store.pools.add(machine)
    await plane.node.park(PoolOrder(id=machine.id, key=key))
    assert await plane.store.pools.parked(machine.id, at=now)
    return machine.id


async def test_a_create_takes_a_warm_machine_of_its_kind_and_each_only_once(plane: ControlPlane) -> None:
    warm = await parked(plane)
    await parked(plane, memory_mib=64)
    sandboxes = [await plane.running() for _ in range(2)]
    assert [sandbox.pooled_id for sandbox in sandboxes] == [warm, None]
    assert plane.node.bound == {warm: MachineRef(sandboxes[0].id, 1)}
    assert plane.node.machines == {sandbox.id: 1 for sandbox in sandboxes}


@pytest.mark.parametrize("error", [NotFound("gone"), GuestUnreachable("silent"), RuntimeFailed("no")])
async def test_a_warm_machine_that_cannot_be_bound_is_given_up_and_another_is_started(
    plane: ControlPlane, error: Exception
) -> None:
    await parked(plane)
    plane.node.fail("bind", error)
    sandbox = await plane.running()
    assert (plane.node.bound, plane.node.pool) == ({}, {})
    assert plane.node.machines == {sandbox.id: 1}


async def test_a_delete_arriving_while_a_warm_machine_is_being_bound_leaves_no_machine(plane: ControlPlane) -> None:
    await parked(plane)
    gate = plane.node.hold("bind")
    sandbox, _ = await plane.create()
    await gate.entered.wait()
    assert (await plane.ended(await plane.delete(sandbox.id))).status is Status.SUCCEEDED
    gate.open()
    await plane.idle()
    assert plane.node.machines == {}

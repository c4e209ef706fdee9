"""A delete that arrives while another operation is at work: it wins, and nothing is left on the node."""

import asyncio
from pathlib import Path

import pytest

from space.control.observations import Observations
from space.core.ids import SandboxId
from space.core.lifecycle import Kind, State
from space.core.operation import Operation, Status
from space.core.snapshot import SnapshotState
from space.testing.clock import FakeClock
from space.testing.control_plane import ControlPlane, NoProcesses, a_call, control_plane, principal
from space.testing.node import FakeNode

pytestmark = pytest.mark.anyio


async def test_a_delete_arriving_while_a_machine_is_half_built_leaves_no_machine(tmp_path: Path) -> None:
    node = FakeNode()
    node.gate = asyncio.Event()
    async with control_plane(tmp_path, node=node) as plane:
        sandbox, create = await plane.create()
        await node.entered.wait()  # the node is in the middle of the step

        delete = await plane.delete(sandbox.id)

        assert (await plane.operations.get(principal(), create.id)).status is Status.CANCELLED
        assert (await plane.ended(delete)).status is Status.SUCCEEDED
        node.gate.set()  # the old step goes on, and finds the tombstone
        await plane.idle()
        assert node.machines == {}
        assert node.started == []
        row = await plane.get(sandbox.id)
        assert (row.state, row.generation, row.held_by) == (State.DELETED, 2, None)


async def test_a_step_that_ends_after_the_delete_was_admitted_cannot_bring_the_sandbox_back(tmp_path: Path) -> None:
    clock, node = FakeClock(), FakeNode()
    node.gate = asyncio.Event()
    async with control_plane(tmp_path, node=node, clock=clock) as plane:
        sandbox, _create = await plane.create()
        await node.entered.wait()
        node.remove_failures = [RuntimeError("the node is slow")]  # the delete's first attempt does not reach it
        delete = await plane.delete(sandbox.id)
        async with asyncio.timeout(10):
            while node.remove_failures:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        node.gate.set()  # the machine comes up while the delete waits for its next attempt
        await plane.idle()
        assert node.machines == {sandbox.id: 1}
        assert (await plane.get(sandbox.id)).shown_state == "deleting"

        clock.advance(5)
        assert (await plane.ended(delete)).status is Status.SUCCEEDED
        assert node.machines == {}
        events = await plane.sandboxes.events(principal(), sandbox.id, after=0, limit=20)
        assert [event.type for event in events] == [
            "sandbox.created",
            "operation.cancelled",
            "operation.started",
            "operation.succeeded",
        ]
        assert [event.seq for event in events] == [1, 2, 3, 4]


async def test_a_second_delete_joins_the_first_and_a_third_finds_it_done(tmp_path: Path) -> None:
    node = FakeNode()
    async with control_plane(tmp_path, node=node) as plane:
        sandbox = await plane.running()
        node.remove_failures = [RuntimeError("not yet")]
        first = await plane.delete(sandbox.id)
        second = await plane.delete(sandbox.id)
        assert second.id == first.id
        await plane.ended(first)
        third = await plane.sandboxes.delete(a_call("deleteSandbox"), sandbox.id)
        assert third.id != first.id
        assert third.status is Status.SUCCEEDED
        assert (await plane.operations.get(principal(), third.id)).status is Status.SUCCEEDED


HALF_DONE = [
    (Kind.PAUSE, "pause"),
    (Kind.SUSPEND, "checkpoint"),
    (Kind.SUSPEND, "upload"),
    (Kind.SUSPEND, "release"),
    (Kind.FORK, "checkpoint"),
    (Kind.FORK, "upload"),
    (Kind.SNAPSHOT, "checkpoint"),
    (Kind.SNAPSHOT, "upload"),
]


async def begin(plane: ControlPlane, kind: Kind, sandbox_id: SandboxId) -> Operation:
    call = a_call(f"{kind}Sandbox")
    match kind:
        case Kind.FORK:
            return (await plane.sandboxes.fork(call, sandbox_id, 2)).changed.operation
        case Kind.SNAPSHOT:
            return (await plane.sandboxes.snapshot(call, sandbox_id, "kept")).operation
        case Kind.PAUSE:
            return (await plane.sandboxes.pause(call, sandbox_id)).operation
        case _:
            return (await plane.sandboxes.suspend(call, sandbox_id)).operation


@pytest.mark.parametrize(("kind", "method"), HALF_DONE)
async def test_a_delete_arriving_while_a_step_is_half_done_on_the_node_leaves_nothing(
    tmp_path: Path, kind: Kind, method: str
) -> None:
    node = FakeNode()
    async with control_plane(tmp_path, node=node) as plane:
        sandbox = await plane.running()
        gate = node.hold(method)
        operation = await begin(plane, kind, sandbox.id)
        await gate.entered.wait()

        delete = await plane.delete(sandbox.id)
        assert (await plane.ended(delete)).status is Status.SUCCEEDED
        gate.open()  # the old step goes on, and finds that its machine is gone
        await plane.idle()

        preempted = await plane.operations.get(principal(), operation.id)
        is_done = method == "release"  # the suspend had been published before
        assert preempted.status is (Status.SUCCEEDED if is_done else Status.CANCELLED)
        assert (node.machines, node.stopped) == ({}, set())
        assert (await plane.get(sandbox.id)).state is State.DELETED
        if not is_done:
            assert node.checkpoints == {}, "what nobody can publish any more is not kept on the node's disk"
        children = plane.store._reader.rows("SELECT state FROM sandboxes WHERE id <> ?", (sandbox.id,))
        assert children == ([("failed",)] * 2 if kind is Kind.FORK else [])


@pytest.mark.parametrize("state", [State.PAUSED, State.SUSPENDED, State.FAILED])
async def test_a_delete_arriving_while_a_machine_is_coming_back_leaves_nothing(tmp_path: Path, state: State) -> None:
    node = FakeNode()
    async with control_plane(tmp_path, node=node) as plane:
        sandbox = await plane.running()
        match state:
            case State.PAUSED:
                await plane.done(plane.sandboxes.pause(a_call(), sandbox.id))
            case State.SUSPENDED:
                await plane.done(plane.sandboxes.suspend(a_call(), sandbox.id))
            case _:
                await plane.done(plane.sandboxes.snapshot(a_call(), sandbox.id, None))
                node.crash(sandbox.id, is_seen=False)
                await Observations(plane.store, node, plane.clock, NoProcesses()).reconcile()
        gate = node.hold("resume" if state is State.PAUSED else "ensure")
        bring = plane.sandboxes.recover if state is State.FAILED else plane.sandboxes.wake
        operation = (await bring(a_call(), sandbox.id)).operation
        await gate.entered.wait()

        delete = await plane.delete(sandbox.id)
        assert (await plane.ended(delete)).status is Status.SUCCEEDED
        gate.open()
        await plane.idle()

        assert (await plane.operations.get(principal(), operation.id)).status is Status.CANCELLED
        assert node.machines == {}
        assert (await plane.get(sandbox.id)).state is State.DELETED


async def test_a_suspend_that_ends_after_the_delete_was_admitted_publishes_nothing(tmp_path: Path) -> None:
    clock, node = FakeClock(), FakeNode()
    async with control_plane(tmp_path, node=node, clock=clock) as plane:
        sandbox = await plane.running()
        gate = node.hold("upload")
        suspend = (await plane.sandboxes.suspend(a_call(), sandbox.id)).operation
        await gate.entered.wait()
        node.remove_failures = [RuntimeError("the node is slow")]
        delete = await plane.delete(sandbox.id)
        async with asyncio.timeout(10):
            while node.remove_failures:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        gate.open()  # the upload succeeds while the delete waits for its next attempt
        await plane.idle()
        assert suspend.snapshot_id is not None
        snapshot = await plane.store.snapshots.find(suspend.snapshot_id)
        assert snapshot is not None
        assert snapshot.state is SnapshotState.UPLOADING
        assert (await plane.get(sandbox.id)).shown_state == "deleting"
        clock.advance(5)
        assert (await plane.ended(delete)).status is Status.SUCCEEDED
        assert node.machines == {}

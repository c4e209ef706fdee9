"""A delete that arrives while another operation is at work: it wins, and nothing is left on the node."""

import asyncio
from pathlib import Path

import pytest

from space.core.lifecycle import State
from space.core.operation import Status
from space.testing.clock import FakeClock
from space.testing.control_plane import a_call, control_plane, principal
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

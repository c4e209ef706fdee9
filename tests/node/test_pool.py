"""Machines that wait without a sandbox, and how one gets them."""

from dataclasses import replace
from typing import cast

import anyio
import pytest
from tests.node.harness import World, eventually, new_id, observed, order, output, read, shell

from space.core.errors import (
    CapacityUnavailable,
    GuestUnreachable,
    NotFound,
    RuntimeFailed,
    SpaceError,
    StaleGeneration,
)
from space.core.ids import PooledId
from space.core.node import MachineOrder
from space.core.pool import PoolKey, PoolOrder
from space.core.ports import MachineExited
from space.host import failpoint
from space.node.agent import Node
from space.node.guest import Guest
from space.node.record import MachineRecord, pooled_ref
from space.testing.guest import AnsweringGuest, FakeGuest

pytestmark = pytest.mark.anyio


def pool_order(machine: MachineOrder | None = None) -> PoolOrder:
    machine = machine or order()
    key = PoolKey(template_digest=machine.template_digest, runtime=machine.runtime, resources=machine.resources)
    return PoolOrder(id=PooledId(new_id("mch")), key=key)


def guest(world: World, pooled_id: PooledId) -> FakeGuest:
    machine_id = pooled_ref(pooled_id).machine_id
    return cast(AnsweringGuest, world.host.machines[machine_id].listen).guest


async def parked(node: Node) -> PooledId:
    wanted = pool_order()
    await node.park(wanted)
    return wanted.id


async def assert_usable(node: Node, machine: MachineOrder) -> None:
    process = shell("echo $FROM_SANDBOX $FROM_TEMPLATE")
    await node.start_process(machine.ref, process)
    assert output(await read(node, process.session_id)) == b"1 1\n"


async def test_a_parked_machine_waits_and_is_nobodys(memory: World) -> None:
    async with memory.running() as node:
        wanted = pool_order()
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(node.park, wanted)
        assert list(memory.host.machines) == [f"{wanted.id}000000"]
        assert list(await node.parked()) == [wanted.id]
        assert await node.report() == {}
        await node.retire(wanted.id)
        await node.retire(wanted.id)
        assert not memory.host.machines
        assert not await node.parked()


async def test_a_bound_machine_is_the_sandboxs_in_every_way(memory: World) -> None:
    async with memory.running() as node:
        pooled_id, machine = await parked(node), order()
        token = guest(memory, pooled_id)._token
        await node.bind(pooled_id, machine)
        await node.bind(pooled_id, machine)
        bound = guest(memory, pooled_id)
        assert bound._token != token
        assert bound.hostname == machine.ref.sandbox_id
        assert await node.report() == {machine.ref.sandbox_id: 1}
        assert not await node.parked()
        await node.ensure(machine)
        await assert_usable(node, machine)
        await node.retire(pooled_id)
        await node.park(replace(pool_order(), id=pooled_id))
        assert len(memory.host.machines) == 1
    async with memory.running() as node:
        assert await node.report() == {machine.ref.sandbox_id: 1}
        assert not await node.parked()
        await assert_usable(node, machine)
        await node.remove(machine.ref)
        assert not memory.host.machines
        with pytest.raises(StaleGeneration):
            await node.bind(pooled_id, machine)


async def test_a_bound_machine_that_dies_is_told_of_under_its_sandbox(memory: World) -> None:
    async with memory.running() as node:
        pooled_id, machine = await parked(node), order()
        await node.bind(pooled_id, machine)
        memory.host.exit(pooled_ref(pooled_id).machine_id, "oom")
        (found,) = await observed(node, 1)
        assert isinstance(found, MachineExited)
        assert (found.ref, found.exit.reason) == (machine.ref, "oom")


async def test_parked_machines_outlive_the_node(memory: World) -> None:
    async with memory.running() as node:
        pooled_id = await parked(node)
    async with memory.running() as node:
        assert list(await node.parked()) == [pooled_id]
        machine = order()
        await node.bind(pooled_id, machine)
        await assert_usable(node, machine)


async def test_a_parked_machine_that_died_is_gone_quietly(memory: World) -> None:
    async with memory.running() as node:
        pooled_id = await parked(node)
        memory.host.exit(pooled_ref(pooled_id).machine_id)
        await eventually(lambda: not node._machines.live)
        assert not await node.parked()
        with pytest.raises(NotFound):
            await node.bind(pooled_id, order())


async def test_twenty_machines_go_to_twenty_sandboxes_at_once(memory: World) -> None:
    async with memory.running() as node:
        pooled = [await parked(node) for _ in range(20)]
        machines = [order() for _ in pooled]
        async with anyio.create_task_group() as tasks:
            for pooled_id, machine in zip(pooled, machines, strict=True):
                tasks.start_soon(node.bind, pooled_id, machine)
        assert len(await node.report()) == 20
        assert len({guest(memory, pooled_id)._token for pooled_id in pooled}) == 20
        for machine in machines:
            await assert_usable(node, machine)


async def test_a_machine_is_given_to_one_sandbox_only(memory: World) -> None:
    async with memory.running() as node:
        pooled_id, given = await parked(node), []

        async def bind(machine: MachineOrder) -> None:
            try:
                await node.bind(pooled_id, machine)
                given.append(machine)
            except NotFound:
                pass

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(bind, order())
        assert len(given) == 1


async def test_a_sandbox_gets_one_machine_only(memory: World) -> None:
    async with memory.running() as node:
        machine = order()
        await node.ensure(machine)
        pooled_id = await parked(node)
        with pytest.raises(NotFound, match="another machine"):
            await node.bind(pooled_id, machine)
        assert list(await node.parked()) == [pooled_id]


async def test_a_machine_of_another_kind_is_not_given(memory: World) -> None:
    async with memory.running() as node:
        pooled_id = await parked(node)
        with pytest.raises(NotFound, match="another kind"):
            await node.bind(pooled_id, order(memory_mib=65))


async def test_a_binding_that_fails_ends_the_machine_and_the_sandbox_may_be_started_otherwise(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory.running() as node:
        pooled_id, machine = await parked(node), order()

        async def refuse(self: Guest, **args: object) -> None:
            raise GuestUnreachable("it hangs")

        with monkeypatch.context() as patch:
            patch.setattr(Guest, "personalise", refuse)
            with pytest.raises(GuestUnreachable):
                await node.bind(pooled_id, machine)
        assert not memory.host.machines
        await node.retire(pooled_id)
        await node.ensure(machine)
        await assert_usable(node, machine)


async def test_a_sandbox_whose_warm_machine_dies_while_it_is_bound_is_started_otherwise(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory.running() as node:
        pooled_id, machine = await parked(node), order()

        async def die(self: Guest, **args: object) -> None:
            memory.host.exit(pooled_ref(pooled_id).machine_id, "oom")
            await anyio.sleep(0.1)
            raise GuestUnreachable("it is gone")

        with monkeypatch.context() as patch:
            patch.setattr(Guest, "personalise", die)
            with pytest.raises(GuestUnreachable):
                await node.bind(pooled_id, machine)
        await node.retire(pooled_id)
        await node.ensure(machine)
        await assert_usable(node, machine)


async def test_parked_machines_count(memory: World) -> None:
    async with memory.running(max_machines=1) as node:
        await parked(node)
        with pytest.raises(CapacityUnavailable):
            await node.ensure(order())


async def test_retiring_ends_a_machine_that_is_on_its_way(memory: World) -> None:
    async with memory.running() as node:
        wanted = pool_order()
        memory.host.unreachable.add(pooled_ref(wanted.id).machine_id)

        async def park() -> None:
            with pytest.raises(SpaceError):
                await node.park(wanted)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(park)
            await anyio.sleep(0.05)
            assert list(await node.parked()) == [wanted.id]
            with anyio.fail_after(5):
                await node.retire(wanted.id)
        assert not memory.host.machines


async def test_a_machine_that_was_not_ready_when_the_node_died_is_not_parked(memory: World) -> None:
    async with memory.running() as node:
        wanted = pool_order()
        failpoint.arm("park.before_ready:error")
        try:
            with pytest.raises(failpoint.FailpointError):
                await node.park(wanted)
        finally:
            failpoint.arm("")
    async with memory.running() as node:
        assert not await node.parked()
        assert not memory.host.machines


def test_a_crash_while_a_record_is_bound_leaves_it_parked_or_bound(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = order()

    async def prepare() -> MachineRecord | None:
        async with memory.running() as node:
            return MachineRecord.read(node._machines.live[pooled_ref(await parked(node)).sandbox_id].record.directory)

    record = anyio.run(prepare)
    assert record is not None
    with monkeypatch.context() as patch:
        patch.setattr(MachineRecord, "_write_intent", lambda self: (_ for _ in ()).throw(RuntimeFailed("killed")))
        with pytest.raises(RuntimeFailed):
            record.bind(machine)
    assert MachineRecord.read(record.directory) == record
    bound = record.bind(machine)
    assert MachineRecord.read(record.directory) == bound
    assert bound.tokens == (record.token, bound.token)
    settled = bound.settle()
    assert MachineRecord.read(record.directory) == settled
    assert settled.tokens == (bound.token,)

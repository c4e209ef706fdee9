import asyncio
import json
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from tests.node.harness import LocalMachine, LocalRuntime, World, eventually, observed, order, read, shell

from space.core.errors import CapacityUnavailable, NotFound, RuntimeFailed, StaleGeneration, Unsupported
from space.core.node import Capabilities, MachineHandle, MachineRef, MachineSpec
from space.core.ports import MachineExited, SessionStatus
from space.node.record import MachineRecord
from space.testing.runtime import FakeMachine

pytestmark = [pytest.mark.anyio, pytest.mark.live]


def leftovers(world: World) -> list[str]:
    """Return what should not be there when no machine is."""
    directories = [path.name for path in (world.data_dir / "node/machines").iterdir()]
    return [*directories, *world.host.machines, *world.agents.processes]


async def nothing_left(world: World) -> None:
    """Wait until the clean-up in the background is done."""
    await eventually(lambda: not leftovers(world))


async def test_ensuring_twice_starts_one_machine(world: World) -> None:
    async with world.running() as node:
        machine = order()
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(node.ensure, machine)
        await node.ensure(machine)
        assert list(world.host.machines) == [machine.ref.machine_id]
        assert await node.report() == {machine.ref.sandbox_id: 1}


async def test_an_older_generation_is_refused(world: World) -> None:
    async with world.running() as node:
        machine = order(replace(order().ref, generation=3))
        await node.ensure(machine)
        older = MachineRef(machine.ref.sandbox_id, 2)
        with pytest.raises(StaleGeneration):
            await node.ensure(replace(machine, ref=older))
        with pytest.raises(StaleGeneration):
            await node.remove(older)
        with pytest.raises(StaleGeneration):
            await node.start_process(older, shell("true"))
        with pytest.raises(NotFound):
            await node.start_process(MachineRef(machine.ref.sandbox_id, 4), shell("true"))
        assert await node.report() == {machine.ref.sandbox_id: 3}


async def test_a_newer_generation_replaces_the_machine(world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        command = shell("sleep 60")
        await node.start_process(machine.ref, command)
        newer = replace(machine, ref=replace(machine.ref, generation=2))
        await node.ensure(newer)
        assert list(world.host.machines) == [newer.ref.machine_id]
        status = await node.session_status(command.session_id)
        assert status is not None
        assert status.is_lost


async def test_a_removed_sandbox_stays_removed_after_a_restart(world: World) -> None:
    machine = order()
    async with world.running() as node:
        await node.ensure(machine)
        gone = replace(machine.ref, generation=2)
        await node.remove(gone)
        await node.remove(gone)
    async with world.running() as node:
        for generation in (1, 2):
            with pytest.raises(StaleGeneration):
                await node.ensure(replace(machine, ref=replace(machine.ref, generation=generation)))
        assert leftovers(world) == []


async def test_removing_what_never_was_succeeds_and_fences(world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.remove(machine.ref)
        with pytest.raises(StaleGeneration, match="was removed"):
            await node.ensure(machine)


async def test_a_remove_ends_an_ensure_under_way(world: World) -> None:
    world.host.start_seconds = 0.2
    async with world.running() as node:
        machine = order()
        world.host.unreachable.add(machine.ref.machine_id)
        refused = []

        async def ensure() -> None:
            with pytest.raises(StaleGeneration):
                await node.ensure(machine)
            refused.append(True)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ensure)
            await anyio.sleep(0.05)
            with anyio.fail_after(30):
                await node.remove(replace(machine.ref, generation=2))
        assert refused
        assert leftovers(world) == []


async def test_a_newer_ensure_ends_an_older_one_under_way(world: World) -> None:
    async with world.running() as node:
        machine = order()
        world.host.unreachable.add(machine.ref.machine_id)
        newer = replace(machine, ref=replace(machine.ref, generation=2))

        async def ensure() -> None:
            with pytest.raises(StaleGeneration):
                await node.ensure(machine)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ensure)
            await anyio.sleep(0.05)
            with anyio.fail_after(10):
                await node.ensure(newer)
        assert list(world.host.machines) == [newer.ref.machine_id]


async def test_a_start_that_fails_leaves_nothing_and_may_be_tried_again(world: World) -> None:
    async with world.running() as node:
        machine = order()
        world.host.fail_next_start()
        with pytest.raises(RuntimeFailed):
            await node.ensure(machine)
        assert leftovers(world) == []
        assert (await node.facts()).machines == 0
        await node.ensure(machine)


async def test_what_a_failed_start_could_not_clean_up_is_cleaned_up_before_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running() as node:
        machine = order()
        broken = [RuntimeFailed("stop failed"), RuntimeFailed("write failed")]

        async def stop(self: object, *, grace: float = 0) -> None:
            raise broken.pop()

        def write_handle(self: object, handle: object) -> None:
            raise broken.pop()

        with monkeypatch.context() as patch:
            patch.setattr(LocalMachine, "stop", stop)
            patch.setattr(MachineRecord, "write_handle", write_handle)
            with pytest.raises(RuntimeFailed, match="write failed"):
                await node.ensure(machine)
        assert leftovers(world) == [machine.ref.machine_id] * 3
        await node.ensure(machine)
        process = shell("echo fine")
        await node.start_process(machine.ref, process)
        assert (await read(node, process.session_id))[1].payload == b"fine\n"
        await node.remove(machine.ref)
        assert leftovers(world) == []


async def test_an_agent_that_never_answers_fails_the_start(world: World) -> None:
    async with world.running(create_deadline=0.3) as node:
        machine = order()
        world.host.unreachable.add(machine.ref.machine_id)
        with pytest.raises(RuntimeFailed, match="did not answer"):
            await node.ensure(machine)
        assert leftovers(world) == []


async def test_a_machine_that_dies_while_it_boots_fails_the_start_at_once(world: World) -> None:
    async with world.running() as node:
        machine = order()
        world.host.unreachable.add(machine.ref.machine_id)

        async def ensure() -> None:
            with pytest.raises(RuntimeFailed, match="ended before"), anyio.fail_after(30):
                await node.ensure(machine)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ensure)
            await eventually(lambda: machine.ref.machine_id in world.host.machines)
            world.host.exit(machine.ref.machine_id)
        assert leftovers(world) == []


async def test_a_caller_that_leaves_takes_its_half_built_machine_along(world: World) -> None:
    async with world.running() as node:
        machine = order()
        world.host.unreachable.add(machine.ref.machine_id)
        with anyio.move_on_after(0.2):
            await node.ensure(machine)
        assert leftovers(world) == []
        world.host.unreachable.clear()
        await node.ensure(machine)


async def test_memory_and_machines_are_limited(world: World) -> None:
    async with world.running(max_machines=2) as node:
        available = (await node.facts()).memory_available_mib
        with pytest.raises(CapacityUnavailable, match="memory"):
            await node.ensure(order(memory_mib=available + 1))
        first = order(memory_mib=available)
        await node.ensure(first)
        assert (await node.facts()).memory_available_mib == 0
        with pytest.raises(CapacityUnavailable, match="0 MiB left"):
            await node.ensure(order(memory_mib=64))
        await node.remove(first.ref)
        await node.ensure(order())
        await node.ensure(order())
        with pytest.raises(CapacityUnavailable, match="2 machines"):
            await node.ensure(order())


async def test_an_unknown_runtime_or_template_is_refused(world: World) -> None:
    async with world.running() as node:
        with pytest.raises(Unsupported):
            await node.ensure(replace(order(), runtime="firecracker"))
        with pytest.raises(NotFound):
            await node.ensure(replace(order(), template_digest="sha256:" + "6" * 64))
        assert leftovers(world) == []


async def test_a_machine_that_dies_is_told_of_and_its_commands_are_lost(world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        command = shell("echo before; sleep 600")
        await node.start_process(machine.ref, command)
        records = node.read_session(command.session_id)
        assert [(await anext(records)).kind.name for _ in range(2)] == ["PROCESS_STARTED", "STDOUT"]  # type: ignore[union-attr]
        await observed(node, 1)
        world.agents.kill(machine.ref.machine_id)
        world.host.exit(machine.ref.machine_id, "oom", 137)
        with anyio.fail_after(10):
            kinds = [record.kind.name async for record in records]  # type: ignore[union-attr]
        assert kinds == ["SANDBOX_LOST"]
        first, second = await observed(node, 2)
        assert isinstance(first, SessionStatus)
        assert (first.is_lost, first.reason, first.exit_code) == (True, "oom", None)
        assert isinstance(second, MachineExited)
        assert (second.ref, second.exit.reason) == (machine.ref, "oom")
        assert await node.report() == {}
        await nothing_left(world)
        with pytest.raises(NotFound):
            await node.start_process(machine.ref, shell("true"))


async def test_a_generation_runs_only_once(world: World) -> None:
    machine = order()
    async with world.running() as node:
        await node.ensure(machine)
        world.host.exit(machine.ref.machine_id)
        await observed(node, 1)
        with pytest.raises(RuntimeFailed, match="has ended"):
            await node.ensure(machine)
    async with world.running() as node:
        with pytest.raises(RuntimeFailed, match="has ended"):
            await node.ensure(machine)
        await node.ensure(replace(machine, ref=replace(machine.ref, generation=2)))


async def test_machines_outlive_the_node_and_are_taken_up_again(world: World) -> None:
    machine, command = order(), shell("for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done")
    async with world.running() as node:
        await node.ensure(machine)
        await node.start_process(machine.ref, command)
        await anyio.sleep(0.2)
    await anyio.sleep(0.2)
    async with world.running() as node:
        assert await node.report() == {machine.ref.sandbox_id: 1}
        await node.ensure(machine)
        records = await read(node, command.session_id)
        assert b"".join(r.payload for r in records if r.kind.is_output) == b"1\n2\n3\n4\n5\n6\n"
        assert records[-1].kind.name == "PROCESS_EXITED"
        later = shell("echo again")
        await node.start_process(machine.ref, later)
        assert b"again" in b"".join(record.payload for record in await read(node, later.session_id))


async def test_a_machine_that_died_while_the_node_was_away_is_told_of(world: World) -> None:
    machine, command = order(), shell("sleep 600")
    async with world.running() as node:
        await node.ensure(machine)
        await node.start_process(machine.ref, command)
    world.agents.kill(machine.ref.machine_id)
    world.host.machines.clear()
    async with world.running() as node:
        assert await node.report() == {}
        found = await observed(node, 2)
        assert any(isinstance(item, MachineExited) and item.ref == machine.ref for item in found)
        records = await read(node, command.session_id)
        assert records[-1].kind.name == "SANDBOX_LOST"
        assert leftovers(world) == []


async def test_no_machine_of_before_the_hosts_start_is_taken_for_one_that_runs(world: World) -> None:
    """Pids and their start times come again: the same numbers may be another program's."""
    machine, command = order(), shell("sleep 600")
    async with world.running() as node:
        await node.ensure(machine)
        await node.start_process(machine.ref, command)
    (intent,) = world.data_dir.rglob("intent.json")
    intent.write_text(json.dumps({**json.loads(intent.read_text()), "boot_id": "another"}))
    async with world.running() as node:
        assert await node.report() == {}
        (found,) = [item for item in await observed(node, 2) if isinstance(item, MachineExited)]
        assert (found.ref, found.exit.reason) == (machine.ref, "node_lost")
        last = (await read(node, command.session_id))[-1]
        assert (last.kind.name, json.loads(last.payload)["reason"]) == ("SANDBOX_LOST", "node_lost")
        assert leftovers(world) == []


async def test_a_machine_that_cannot_be_taken_up_again_keeps_no_other_down(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, whole, command = order(), order(), shell("sleep 600")
    async with world.running() as node:
        await node.ensure(broken)
        await node.ensure(whole)
        await node.start_process(broken.ref, command)
    recover = LocalRuntime.recover

    async def recover_one(self: LocalRuntime, handle: MachineHandle, spec: MachineSpec) -> FakeMachine | None:
        if handle.machine_id == broken.ref.machine_id:
            raise PermissionError("not even its pidfd")
        return await recover(self, handle, spec)

    monkeypatch.setattr(LocalRuntime, "recover", recover_one)
    async with world.running() as node:
        assert await node.report() == {whole.ref.sandbox_id: 1}
        found = [item for item in await observed(node, 2) if isinstance(item, MachineExited)]
        assert [(item.ref, item.exit.reason) for item in found] == [(broken.ref, "recover_failed")]
        assert (await read(node, command.session_id))[-1].kind.name == "SANDBOX_LOST"
        assert leftovers(world) == [whole.ref.machine_id] * 3
        with pytest.raises(RuntimeFailed, match="has ended"):
            await node.ensure(broken)


async def test_a_runtime_that_cannot_be_probed_is_a_no_until_it_can(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        async def full(self: LocalRuntime) -> Capabilities:
            raise OSError("No space left on device")

        patch.setattr(LocalRuntime, "probe", full)
        async with anyio.create_task_group() as tasks:
            node = world.node(sweep_seconds=0.05)
            tasks.start_soon(node.run)
            found = (await node.facts()).runtimes["fake"]
            assert not found.is_available
            assert "No space left" in found.reasons["available"]
            patch.undo()
            await eventually(lambda: node._capabilities["fake"].is_available)
            tasks.cancel_scope.cancel()


async def test_limits_hold_for_orders_that_come_while_it_sweeps(world: World) -> None:
    async with world.running(max_machines=2) as node:
        refused = []

        async def ensure() -> None:
            try:
                await node.ensure(order())
            except CapacityUnavailable as error:
                refused.append(error)

        async with anyio.create_task_group() as tasks, node._machines.sweeping:
            for _ in range(5):
                tasks.start_soon(ensure)
            await anyio.sleep(0.05)
        assert len(refused) == 3
        assert len(await node.report()) == 2


async def test_the_sweep_removes_what_belongs_to_no_machine(world: World) -> None:
    async with world.running(sweep_seconds=0.1) as node:
        machine = order()
        await node.ensure(machine)
        stranger = order()
        (world.data_dir / "node/machines" / stranger.ref.machine_id).mkdir()
        world.cgroups.existing.add("/fake/m99")
        (world.directory / "filestores/77").mkdir()
        running = world.host.machines[machine.ref.machine_id]
        world.host.machines[stranger.ref.machine_id] = replace(running, ended=asyncio.Event(), serving={})
        await eventually(lambda: leftovers(world) == [machine.ref.machine_id] * 3 and not world.cgroups.existing)
        await eventually(lambda: not (world.directory / "filestores/77").exists())
        status = await node.start_process(machine.ref, shell("true"))
        assert status.os_pid


async def test_100_sandboxes_leave_no_descriptor_directory_or_task(world: World) -> None:
    async with world.running() as node:
        first = order()
        await node.ensure(first)
        await node.remove(first.ref)
        before = descriptors()
        for number in range(20):
            machine = order()
            await node.ensure(machine)
            command = shell("echo hello")
            await node.start_process(machine.ref, command)
            if number % 2:
                await read(node, command.session_id)
            await node.remove(machine.ref)
        assert descriptors() == before
        assert leftovers(world) == []
        assert len(world.networks) <= 4


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))

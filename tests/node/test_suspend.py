"""Suspend, wake, fork and recover on one node, with guests in memory."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast

import anyio
import pytest
from tests.node.harness import World, eventually, later, moment, observed, order, output, read, shell, snapshot, suspend

from space.core.errors import (
    GuestUnreachable,
    InUse,
    NotFound,
    RuntimeFailed,
    StaleGeneration,
    Unavailable,
    Unsupported,
)
from space.core.journal import JournalRecord, RecordKind
from space.core.node import MachineOrder, MachineRef
from space.core.ports import MachineExited, ProcessOrder
from space.node.agent import Node
from space.testing.guest import AnsweringGuest, FakeGuest

pytestmark = pytest.mark.anyio

COUNT = "for i in $(seq 60); do echo $i; sleep 0.01; done"
EXPECTED = b"".join(b"%d\n" % number for number in range(1, 61))


def guest(world: World, ref: MachineRef) -> FakeGuest:
    return cast(AnsweringGuest, world.host.machines[ref.machine_id].listen).guest


async def put(node: Node, ref: MachineRef, path: str, data: bytes) -> None:
    async def source() -> AsyncIterator[bytes]:
        yield data

    await node.write_file(ref, path, source())


async def get(node: Node, ref: MachineRef, path: str) -> bytes:
    async with node.read_file(ref, path) as (_, chunks):
        return b"".join([chunk async for chunk in chunks])


async def started(node: Node, script: str) -> tuple[MachineOrder, ProcessOrder]:
    machine, process = order(), shell(script)
    await node.ensure(machine)
    await node.start_process(machine.ref, process)
    return machine, process


async def test_five_suspends_keep_files_and_processes_and_the_stream_has_no_gap(memory: World) -> None:
    async with memory.running() as node:
        machine, process = await started(node, COUNT)
        records: list[JournalRecord] = []

        async def follow() -> None:
            records.extend(await read(node, process.session_id))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            for number in range(5):
                await put(node, machine.ref, f"/root/cycle_{number}", b"%d" % number)
                await anyio.sleep(0.05)
                restore = await suspend(node, machine.ref)
                assert await node.report() == {}
                assert not memory.host.machines
                machine = later(machine, restore)
                await node.ensure(machine)
                for earlier in range(number + 1):
                    assert await get(node, machine.ref, f"/root/cycle_{earlier}") == b"%d" % earlier
        assert output(records) == EXPECTED
        assert [each.position for each in records] == sorted({each.position for each in records})
        assert {each.kind for each in records} == {
            RecordKind.PROCESS_STARTED,
            RecordKind.STDOUT,
            RecordKind.PROCESS_EXITED,
        }


async def test_a_suspended_sandbox_keeps_its_sessions_open_while_the_node_restarts(memory: World) -> None:
    async with memory.running() as node:
        machine, process = await started(node, COUNT)
        restore = await suspend(node, machine.ref)
    async with memory.running() as node:
        assert await node.report() == {}
        status = await node.session_status(process.session_id)
        assert status is not None
        assert status.exited_at is None
        assert not status.is_lost
    async with memory.running() as node:
        await node.ensure(later(machine, restore))
        assert output(await read(node, process.session_id)) == EXPECTED


async def test_removing_a_suspended_sandbox_ends_its_sessions(memory: World) -> None:
    async with memory.running() as node:
        machine, process = await started(node, COUNT)
        restore = await suspend(node, machine.ref)
        await node.remove(replace(machine.ref, generation=2))
        assert (await read(node, process.session_id))[-1].kind is RecordKind.SANDBOX_LOST
        with pytest.raises(StaleGeneration):
            await node.ensure(later(machine, restore))


async def test_a_wake_that_fails_leaves_the_sandbox_suspended_and_the_next_one_works(memory: World) -> None:
    async with memory.running() as node:
        machine, process = await started(node, COUNT)
        restore = await suspend(node, machine.ref)
        memory.images.failures.append(Unavailable("the object store fails"))
        with pytest.raises(Unavailable):
            await node.ensure(later(machine, restore))
        memory.host.fail_next_start()
        with pytest.raises(RuntimeFailed):
            await node.ensure(later(machine, restore))
        await node.ensure(later(machine, restore))
        assert output(await read(node, process.session_id)) == EXPECTED


async def test_a_wake_whose_agent_never_answers_loses_no_stream(memory: World) -> None:
    async with memory.running(create_deadline=0.3) as node:
        machine, process = await started(node, COUNT)
        restore = await suspend(node, machine.ref)
        woken = later(machine, restore)
        memory.host.unreachable.add(woken.ref.machine_id)
        with pytest.raises(RuntimeFailed):
            await node.ensure(woken)
        assert not memory.host.machines
        memory.host.unreachable.clear()
    async with memory.running() as node:
        await node.ensure(later(woken, restore))
        records = await read(node, process.session_id)
        assert output(records) == EXPECTED
        assert RecordKind.SANDBOX_LOST not in {each.kind for each in records}


async def test_a_wake_that_comes_before_the_release_takes_the_sessions_over(memory: World) -> None:
    async with memory.running() as node:
        machine, process = await started(node, COUNT)
        restore = await snapshot(node, machine.ref, moment(freeze=True))
        woken = later(machine, restore)
        await node.ensure(woken)
        assert list(memory.host.machines) == [woken.ref.machine_id]
        with pytest.raises(StaleGeneration):
            await node.release(machine.ref)
        assert output(await read(node, process.session_id)) == EXPECTED


async def test_a_restored_machine_has_another_token_and_its_sandbox_as_its_name(memory: World) -> None:
    async with memory.running() as node:
        machine, _ = await started(node, COUNT)
        before = guest(memory, machine.ref)
        token, machine_id = before._token, before.machine_id
        woken = later(machine, await suspend(node, machine.ref))
        await node.ensure(woken)
        after = guest(memory, woken.ref)
        assert after._token != token
        assert after.machine_id != machine_id
        assert after.hostname == machine.ref.sandbox_id
    async with memory.running() as node:
        assert await node.report() == {machine.ref.sandbox_id: 2}
        await put(node, woken.ref, "/root/a", b"")


async def test_forks_are_others_and_have_none_of_the_processes(memory: World) -> None:
    async with memory.running() as node:
        machine, process = await started(node, "sleep 600")
        await put(node, machine.ref, "/root/a", b"of both")
        restore = await snapshot(node, machine.ref)
        children = [replace(order(), restore=restore) for _ in range(5)]
        for child in children:
            await node.ensure(child)
            assert await get(node, child.ref, "/root/a") == b"of both"
            assert not guest(memory, child.ref)._processes
        guests = [guest(memory, each.ref) for each in (machine, *children)]
        for names in (
            [each._token for each in guests],
            [each.hostname for each in guests],
            [each.machine_id for each in guests],
        ):
            assert len(set(names)) == 6
        status = await node.session_status(process.session_id)
        assert status is not None
        assert status.exited_at is None


async def test_recover_rolls_streams_back_and_ends_what_began_after_the_moment(memory: World) -> None:
    async with memory.running() as node:
        machine, process = await started(node, COUNT)
        ended = shell("sleep 0.3; echo done")
        await node.start_process(machine.ref, ended)
        await anyio.sleep(0.1)
        restore = await snapshot(node, machine.ref)
        younger = shell("sleep 600")
        await node.start_process(machine.ref, younger)
        await read(node, ended.session_id)
        memory.host.exit(machine.ref.machine_id, "oom")
        before = await read(node, process.session_id)
        assert before[-1].kind is RecordKind.SANDBOX_LOST
        recovered = later(machine, restore)
        await node.ensure(recovered)
        await node.ensure(recovered)

        whole = await read(node, process.session_id)
        kinds = [each.kind for each in whole if not each.kind.is_output]
        assert kinds == [RecordKind.PROCESS_STARTED, RecordKind.ROLLED_BACK, RecordKind.PROCESS_EXITED]
        assert as_rolled_back(whole) == EXPECTED
        after = await read(node, process.session_id, start=before[-1].position)
        assert after[0].kind is RecordKind.ROLLED_BACK
        again = await read(node, ended.session_id)
        assert as_rolled_back(again) == b"done\n"
        assert again[-1].kind is RecordKind.PROCESS_EXITED
        assert (await read(node, younger.session_id))[-1].kind is RecordKind.SANDBOX_LOST


def as_rolled_back(records: list[JournalRecord]) -> bytes:
    """Return stdout as a client has it that puts each piece at its offset."""
    result = bytearray()
    for each in records:
        if each.kind is RecordKind.STDOUT:
            assert each.stream_offset <= len(result)
            result[each.stream_offset :] = each.payload
    return bytes(result)


async def test_journals_that_this_node_lacks_come_out_of_the_snapshot(memory: World) -> None:
    async with memory.running() as node:
        machine, process = await started(node, COUNT)
        await anyio.sleep(0.1)
        restore = await suspend(node, machine.ref)
        await node.forget_session(process.session_id)
    async with memory.running() as node:
        await node.ensure(later(machine, restore))
        assert output(await read(node, process.session_id)) == EXPECTED


async def test_a_busy_machine_is_in_use_and_left_alone(memory: World) -> None:
    async with memory.running() as node:
        machine, _ = await started(node, "sleep 600")
        await anyio.sleep(0.05)
        quiet_since = datetime.now(UTC)
        await put(node, machine.ref, "/root/a", b"late")
        with pytest.raises(InUse):
            await node.checkpoint(machine.ref, moment(freeze=True, quiet_since=quiet_since))
        await put(node, machine.ref, "/root/a", b"later")
        await node.checkpoint(machine.ref, moment(quiet_since=datetime.now(UTC) + timedelta(seconds=1)))


async def test_output_counts_as_use(memory: World) -> None:
    async with memory.running() as node:
        machine, _ = await started(node, "sleep 0.1; echo late; sleep 600")
        quiet_since = datetime.now(UTC)
        await anyio.sleep(0.3)
        with pytest.raises(InUse):
            await node.checkpoint(machine.ref, moment(freeze=True, quiet_since=quiet_since))


async def test_the_last_use_is_known_after_a_restart(memory: World) -> None:
    async with memory.running() as node:
        machine, _ = await started(node, "sleep 600")
    async with memory.running() as node:
        with pytest.raises(InUse):
            await node.checkpoint(machine.ref, moment(quiet_since=datetime.now(UTC) - timedelta(seconds=30)))
        await node.checkpoint(machine.ref, moment(quiet_since=datetime.now(UTC) + timedelta(seconds=2)))


async def test_calls_wait_for_a_checkpoint_and_do_not_fail(memory: World) -> None:
    memory.host.snapshot_seconds = 0.5
    async with memory.running() as node:
        machine, process = await started(node, COUNT)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.checkpoint, machine.ref, moment())
            await anyio.sleep(0.1)
            other = shell("echo other")
            await put(node, machine.ref, "/root/a", b"held up")
            await node.start_process(machine.ref, other)
        assert output(await read(node, other.session_id)) == b"other\n"
        assert output(await read(node, process.session_id)) == EXPECTED


@pytest.mark.parametrize("freeze", [False, True])
async def test_a_checkpoint_that_fails_leaves_the_machine_running(memory: World, freeze: bool) -> None:
    async with memory.running() as node:
        machine, process = await started(node, COUNT)
        memory.host.fail_next_snapshot(RuntimeFailed("runsc said no"))
        with pytest.raises(RuntimeFailed):
            await node.checkpoint(machine.ref, moment(freeze=freeze))
        memory.images.failures.append(Unavailable("the base is gone"))
        with pytest.raises(Unavailable):
            await node.checkpoint(machine.ref, moment(freeze=freeze))
        assert output(await read(node, process.session_id)) == EXPECTED
        assert not list((memory.data_dir / "node/staging").iterdir())


async def test_asking_for_a_checkpoint_twice_makes_one(memory: World) -> None:
    async with memory.running() as node:
        machine, _ = await started(node, "sleep 600")
        wanted = moment(freeze=True)
        plan = await node.checkpoint(machine.ref, wanted)
        memory.host.fail_next_snapshot(RuntimeFailed("not twice"))
        assert await node.checkpoint(machine.ref, wanted) == plan


async def test_a_frozen_machine_stays_so_over_a_restart_until_it_is_resumed(memory: World) -> None:
    async with memory.running() as node:
        machine, process = await started(node, COUNT)
        wanted = moment(freeze=True)
        plan = await node.checkpoint(machine.ref, wanted)
    async with memory.running(guest_deadline=0.2) as node:
        assert await node.report() == {machine.ref.sandbox_id: 1}
        assert await node.checkpoint(machine.ref, wanted) == plan
        with pytest.raises(GuestUnreachable):
            await put(node, machine.ref, "/root/a", b"")
        await node.resume(machine.ref)
        await put(node, machine.ref, "/root/a", b"")
        assert output(await read(node, process.session_id)) == EXPECTED


async def test_a_checkpoint_of_a_paused_machine_that_fails_leaves_it_paused(memory: World) -> None:
    async with memory.running(guest_deadline=0.2) as node:
        machine, _ = await started(node, "sleep 600")
        await node.pause(machine.ref)
        memory.host.fail_next_snapshot(RuntimeFailed("runsc said no"))
        with pytest.raises(RuntimeFailed):
            await node.checkpoint(machine.ref, moment(freeze=True))
        with pytest.raises(GuestUnreachable):
            await put(node, machine.ref, "/root/a", b"")
        restore = await suspend(node, machine.ref)
        await node.ensure(later(machine, restore))


async def test_a_remove_breaks_a_checkpoint_off(memory: World) -> None:
    memory.host.snapshot_seconds = 60
    async with memory.running() as node:
        machine, process = await started(node, "sleep 600")
        refused = []

        async def checkpoint() -> None:
            with pytest.raises(StaleGeneration):
                await node.checkpoint(machine.ref, moment(freeze=True))
            refused.append(True)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(checkpoint)
            await anyio.sleep(0.1)
            with anyio.fail_after(10):
                await node.remove(replace(machine.ref, generation=2))
        assert refused
        assert not memory.host.machines
        assert (await read(node, process.session_id))[-1].kind is RecordKind.SANDBOX_LOST


async def test_a_moment_of_another_format_template_or_size_is_refused_and_both_are_named(memory: World) -> None:
    async with memory.running() as node:
        machine, process = await started(node, COUNT)
        restore = await suspend(node, machine.ref)
        woken = later(machine, restore)
        with pytest.raises(Unsupported, match="size"):
            await node.ensure(replace(woken, resources=replace(woken.resources, memory_mib=65)))
        with pytest.raises(Unsupported, match=r"sha256:5+, .* sha256:6+"):
            await node.ensure(replace(woken, template_digest="sha256:" + "6" * 64))
        node._capabilities["fake"] = replace(node._capabilities["fake"], snapshot_format="fake/2")
        with pytest.raises(Unsupported, match="fake/1, this machine has fake/2"):
            await node.ensure(woken)
        node._capabilities["fake"] = replace(node._capabilities["fake"], snapshot_format="fake/1")
        await node.ensure(woken)
        assert output(await read(node, process.session_id)) == EXPECTED


async def test_no_key_and_no_token_of_a_snapshot_is_written_in_clear_by_the_machines_record(memory: World) -> None:
    async with memory.running() as node:
        machine, _ = await started(node, "sleep 600")
        restore = replace(await suspend(node, machine.ref), key=b"KEYKEYKEYKEYKEYKEYKEYKEYKEYKEYKE")
        woken = later(machine, restore)
        await node.ensure(woken)
        for path in (memory.data_dir / "node").rglob("*"):
            if path.is_file():
                assert b"KEYKEY" not in path.read_bytes()
                assert restore.key.hex().encode() not in path.read_bytes()


async def test_a_machine_that_dies_frozen_after_its_upload_keeps_its_streams(memory: World) -> None:
    async with memory.running() as node:
        machine, process = await started(node, COUNT)
        restore = await snapshot(node, machine.ref, moment(freeze=True))
        memory.host.exit(machine.ref.machine_id)
        await eventually(lambda: not node._machines.live)
        await node.release(machine.ref)
        await node.ensure(later(machine, restore))
        records = await read(node, process.session_id)
        assert output(records) == EXPECTED
        assert RecordKind.ROLLED_BACK not in {each.kind for each in records}


# Pause


async def test_a_paused_machine_does_nothing_and_goes_on_after_resume(memory: World) -> None:
    async with memory.running(guest_deadline=0.2, guest_silence=0.2) as node:
        machine, process = await started(node, COUNT)
        await node.pause(machine.ref)
        await node.pause(machine.ref)
        before = await node.session_status(process.session_id)
        await anyio.sleep(0.5)
        assert await node.session_status(process.session_id) == before
        with pytest.raises(GuestUnreachable):
            await put(node, machine.ref, "/root/a", b"")
        await node.stats(machine.ref)
        await node.resume(machine.ref)
        await node.resume(machine.ref)
        await put(node, machine.ref, "/root/a", b"")
        assert output(await read(node, process.session_id)) == EXPECTED


async def test_a_paused_machine_is_paused_after_a_restart_of_the_node(memory: World) -> None:
    async with memory.running() as node:
        machine, process = await started(node, COUNT)
        await node.pause(machine.ref)
    async with memory.running(guest_deadline=0.2) as node:
        assert await node.report() == {machine.ref.sandbox_id: 1}
        with pytest.raises(GuestUnreachable):
            await put(node, machine.ref, "/root/a", b"")
        await node.resume(machine.ref)
        assert output(await read(node, process.session_id)) == EXPECTED


async def test_a_paused_machine_that_dies_is_told_of_and_can_be_removed(memory: World) -> None:
    async with memory.running() as node:
        machine, process = await started(node, "sleep 600")
        await node.pause(machine.ref)
        await observed(node, 1)
        memory.host.exit(machine.ref.machine_id, "killed")
        found = await observed(node, 2)
        assert [each.exit.reason for each in found if isinstance(each, MachineExited)] == ["killed"]
        assert (await read(node, process.session_id))[-1].kind is RecordKind.SANDBOX_LOST
        with pytest.raises(NotFound):
            await node.resume(machine.ref)
        await node.remove(replace(machine.ref, generation=2))


async def test_fifty_pauses_in_a_row_leave_a_machine_that_answers(memory: World) -> None:
    async with memory.running() as node:
        machine, process = await started(node, COUNT)
        for _ in range(50):
            await node.pause(machine.ref)
            await node.resume(machine.ref)
        assert output(await read(node, process.session_id)) == EXPECTED


async def test_a_watch_goes_on_over_a_checkpoint_and_says_that_something_may_be_missing(memory: World) -> None:
    async with memory.running() as node:
        machine, _ = await started(node, "sleep 600")
        events: list[str] = []

        async def watch() -> None:
            async with aclosing(node.watch_files(machine.ref, "/root")) as changes:
                async for change in changes:
                    events.append(f"{change.kind} {change.path}")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            await anyio.sleep(0.1)
            await node.checkpoint(machine.ref, moment())
            await eventually(lambda: events == ["overflow /root"])
            tasks.cancel_scope.cancel()

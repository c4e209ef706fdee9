"""Much output: flat memory, nothing lost, held back where it must be."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.node.harness import World, eventually, observed, order, output, read, shell

from space.core.errors import InsufficientStorage
from space.core.journal import JournalRecord, RecordKind, Trimmed
from space.core.node import MachineOrder
from space.node.agent import Node
from space.node.journal.file import Journal
from space.node.journal.layout import RECORD

pytestmark = pytest.mark.anyio

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_mib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // MIB


def print_bytes(count: int) -> str:
    return f"head -c {count} /dev/zero | tr '\\0' x"


@pytest.mark.parametrize("mib", [64, pytest.param(1024, marks=pytest.mark.soak)])
async def test_a_command_that_prints_much_without_a_reader_loses_nothing_in_flat_memory(world: World, mib: int) -> None:
    async with world.running() as node:
        machine, process = order(), shell(print_bytes(mib * MIB))
        await node.ensure(machine)
        before = resident_mib()
        await node.start_process(machine.ref, process)
        highest = before
        with anyio.fail_after(240):
            while (status := await node.session_status(process.session_id)) and status.exited_at is None:
                highest = max(highest, resident_mib())
                await anyio.sleep(0.05)
        assert status is not None
        assert status.stdout_bytes == mib * MIB
        count = 0
        async for record in node.read_session(process.session_id):
            assert isinstance(record, JournalRecord)
            if record.kind.is_output:
                assert record.stream_offset == count
                assert record.payload.strip(b"x") == b""
                count += len(record.payload)
        assert count == mib * MIB
        assert max(highest, resident_mib()) - before < 24


async def test_over_its_limit_a_journal_nobody_reads_loses_its_oldest_part_and_says_so(world: World) -> None:
    async with world.running(journal_limit_mib=8) as node:
        machine, process = order(), shell(print_bytes(48 * MIB))
        await node.ensure(machine)
        await node.start_process(machine.ref, process)
        await observed(node, 2)
        records = [record async for record in node.read_session(process.session_id)]
        (gap,) = [record for record in records if isinstance(record, Trimmed)]
        assert isinstance(records[-1], JournalRecord)
        assert records[-1].kind is RecordKind.PROCESS_EXITED
        assert (world.data_dir / "journals" / process.session_id).stat().st_blocks * 512 < 9 * MIB
        again = [record async for record in node.read_session(process.session_id, start=gap.oldest_position)]
        assert again == records[records.index(gap) + 1 :]


async def test_a_slow_reader_holds_the_command_back_and_gets_everything(world: World) -> None:
    async with world.running(journal_limit_mib=2) as node:
        machine, process = order(), shell(print_bytes(12 * MIB))
        await node.ensure(machine)
        count = 0
        await node.start_process(machine.ref, process)
        async for record in node.read_session(process.session_id):
            assert isinstance(record, JournalRecord)
            if record.kind.is_output:
                assert record.stream_offset == count
                count += len(record.payload)
                await anyio.sleep(0.002)
        assert count == 12 * MIB


async def test_one_stuck_reader_does_not_hold_other_commands_back(world: World) -> None:
    async with world.running(journal_limit_mib=1) as node:
        machine = order()
        await node.ensure(machine)
        flood, small = shell(print_bytes(20 * MIB)), shell("echo quick")
        await node.start_process(machine.ref, flood)
        stuck = node.read_session(flood.session_id)
        await anext(stuck)
        await anyio.sleep(0.5)
        with anyio.fail_after(10):
            await node.start_process(machine.ref, small)
            assert output(await read(node, small.session_id)) == b"quick\n"
            await node.signal_process(machine.ref, flood.process_id, "SIGKILL")
            await stuck.aclose()
            assert [r async for r in node.read_session(flood.session_id)][-1].kind.is_final  # type: ignore[union-attr]


async def test_stderr_and_stdout_of_100_000_small_writes_are_whole(world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        script = "import os\nfor i in range(50000):\n os.write(1, b'%d\\n' % i)\n os.write(2, b'%d\\n' % -i)"
        process = shell(f'exec python3 -c "{script}"')
        await node.start_process(machine.ref, process)
        records = await read(node, process.session_id)
        assert output(records) == b"".join(b"%d\n" % number for number in range(50_000))
        assert output(records, RecordKind.STDERR) == b"".join(b"%d\n" % -number for number in range(50_000))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    target = tmp_path / "data"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(target)], check=True)
    yield target
    subprocess.run(["umount", "-l", str(target)], check=True)


@pytest.mark.root
async def test_a_full_disk_holds_the_command_back_visibly_and_loses_nothing(small_disk: Path, world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(4 * MIB))
        process = shell(print_bytes(5 * MIB))
        await node.start_process(machine.ref, process)
        journal = node._journals.find(process.session_id)
        assert journal is not None
        await eventually(lambda: journal.held_back is not None)
        status = await node.session_status(process.session_id)
        assert status is not None
        assert status.exited_at is None
        assert "No space left on device" in str(status.reason)
        ballast.unlink()
        with anyio.fail_after(20):
            records = await read(node, process.session_id)
        assert output(records) == b"x" * 5 * MIB
        ended = await node.session_status(process.session_id)
        assert ended is not None
        assert (ended.exit_code, ended.reason) == (0, None)


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb") as file, pytest.raises(OSError, match="No space"):
        file.write(bytes(8 * MIB))
    return ballast


async def fill_to_the_last_byte(node: Node, disk: Path) -> tuple[MachineOrder, Journal, Path]:
    """Fill the disk so that a running command's journal has no byte of room."""
    machine, process = order(), shell("read count; head -c $count /dev/zero; exec sleep 600", stdin=True)
    await node.ensure(machine)
    await node.start_process(machine.ref, process)
    journal = node._journals.find(process.session_id)
    assert journal is not None
    count = PAGE - (journal.end + RECORD.size) % PAGE
    await node.write_stdin(machine.ref, process.process_id, b"%d\n" % count)
    await eventually(lambda: journal.end % PAGE == 0)
    ballast = disk / "ballast"
    with ballast.open("wb") as file, pytest.raises(OSError, match="No space"):
        file.write(bytes(8 * MIB))
    return machine, journal, ballast


@pytest.mark.root
async def test_on_a_full_disk_a_sandbox_whose_command_runs_can_be_deleted(small_disk: Path, world: World) -> None:
    async with world.running() as node:
        machine, journal, ballast = await fill_to_the_last_byte(node, small_disk)
        with anyio.fail_after(20), contextlib.suppress(InsufficientStorage):
            await node.remove(machine.ref)
        assert await node.report() == {}
        assert not world.host.machines
        await eventually(lambda: journal.is_final)  # the burial made the room for it
        assert ballast.exists()


@pytest.mark.root
async def test_a_node_starts_on_a_full_disk_and_ends_what_was_lost(small_disk: Path, world: World) -> None:
    alive = order()
    async with world.running() as node:
        await node.ensure(alive)
        dead, before, ballast = await fill_to_the_last_byte(node, small_disk)
    world.agents.kill(dead.ref.machine_id)
    world.host.machines.pop(dead.ref.machine_id)
    with anyio.fail_after(30):
        async with world.running() as node:
            assert await node.report() == {alive.ref.sandbox_id: 1}
            records = await read(node, before.head.session_id)
            assert records[-1].kind is RecordKind.SANDBOX_LOST
            assert ballast.exists()


@pytest.mark.root
async def test_a_full_disk_refuses_new_commands_and_sandboxes_but_not_a_delete(small_disk: Path, world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        ballast = fill(small_disk)
        with pytest.raises(InsufficientStorage):
            await node.start_process(machine.ref, shell("true"))
        with pytest.raises(InsufficientStorage):
            await node.ensure(order())
        assert await node.report() == {machine.ref.sandbox_id: 1}
        try:
            await node.remove(machine.ref)
        except InsufficientStorage:
            ballast.unlink()
            await node.remove(machine.ref)
        assert await node.report() == {}
        assert not list((small_disk / "node/machines").iterdir())

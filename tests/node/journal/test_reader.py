import os
import resource
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.node.conftest import Ids

from space.core.errors import InvalidRequest
from space.core.journal import JournalRecord, RecordKind, Trimmed
from space.node.journal.file import Journal
from space.node.journal.layout import BLOCK_SIZE
from space.node.journal.reader import read_journal

pytestmark = pytest.mark.anyio

LIMIT = 4 << 30
SMALL_LIMIT = 8 * BLOCK_SIZE


def content(size: int, seed: int = 7) -> bytes:
    return (bytes((i * seed + i // 251) % 256 for i in range(65_521)) * (size // 65_521 + 1))[:size]


async def test_a_reader_that_follows_gets_what_comes_until_the_end(tmp_path: Path, ids: Ids) -> None:
    journal = Journal.create(tmp_path / "j", ids.head(), limit_bytes=LIMIT)
    found: list[JournalRecord | Trimmed] = []

    async def follow() -> None:
        found.extend([record async for record in read_journal(journal, 0, follow=True)])

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(follow)
        for number in range(100):
            await journal.append_output(RecordKind.STDOUT, number, b"x")
            await anyio.lowlevel.checkpoint()
        await journal.append_event(RecordKind.PROCESS_EXITED, {"exit_code": 0})
    assert len(found) == 3 * 101


async def test_each_event_id_resumes_after_it_and_nothing_else_is_one(tmp_path: Path, ids: Ids) -> None:
    journal = Journal.create(tmp_path / "j", ids.head(), limit_bytes=LIMIT)
    for number in range(40):
        await journal.append_output(RecordKind.STDOUT, number * 20_000, content(20_000))
    whole = [record async for record in read_journal(journal, 0, follow=False)]
    borders = {record.position for record in whole if isinstance(record, JournalRecord)}
    for index, record in enumerate(whole):
        assert isinstance(record, JournalRecord)
        rest = [r async for r in read_journal(journal, record.position, follow=False)]
        assert rest == whole[index + 1 :]
        for wrong in {record.position - 1, record.position + 1} - borders - {journal.end}:
            if wrong % BLOCK_SIZE:
                with pytest.raises(InvalidRequest):
                    await anext(read_journal(journal, wrong, follow=False))
    for wrong in (-1, journal.end + 1, 1 << 62):
        with pytest.raises(InvalidRequest, match="no event id"):
            await anext(read_journal(journal, wrong, follow=False))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 400_000)),
            st.tuples(st.just("stderr"), st.integers(1, 5_000)),
            st.tuples(st.just("reader"), st.integers(0, 100)),
            st.tuples(st.just("restart"), st.integers(0, 3)),
            st.tuples(st.just("reconnect"), st.integers(0, 100)),
        ),
        max_size=25,
    )
)
async def test_whatever_happens_each_reader_gets_every_byte_once_in_order(
    tmp_path: Path, ids: Ids, steps: list[tuple[str, int]]
) -> None:
    path = tmp_path / ids.session()
    journal = Journal.create(path, ids.head(), limit_bytes=LIMIT)
    sent = {RecordKind.STDOUT: b"", RecordKind.STDERR: b""}
    readers: list[dict[str, object]] = []

    async def pull(reader: dict[str, object]) -> None:
        async for record in read_journal(journal, reader["position"], follow=False):  # type: ignore[arg-type]
            assert isinstance(record, JournalRecord)
            got = reader[record.kind.name]
            assert isinstance(got, bytearray)
            assert record.stream_offset == len(got)
            got += record.payload
            reader["position"] = record.position
            reader["pulls"] = int(str(reader["pulls"])) - 1
            if reader["pulls"] == 0:
                break

    for step, number in steps:
        match step:
            case "append" | "stderr":
                kind = RecordKind.STDOUT if step == "append" else RecordKind.STDERR
                await journal.append_output(kind, len(sent[kind]), content(number, seed=len(sent[kind]) % 13 + 1))
                sent[kind] += content(number, seed=len(sent[kind]) % 13 + 1)
            case "reader":
                readers.append({"position": 0, "STDOUT": bytearray(), "STDERR": bytearray(), "pulls": number})
            case "restart":
                await journal.aclose()
                with path.open("ab") as file:  # a write that the kill tore
                    file.write(b"\x02\0\0\xff"[:number])
                journal = Journal.open(path, limit_bytes=LIMIT)
            case "reconnect":
                for reader in readers:
                    reader["pulls"] = number
                    await pull(reader)
    for reader in readers:
        reader["pulls"] = -1
        await pull(reader)
        assert reader["STDOUT"] == sent[RecordKind.STDOUT]
        assert reader["STDERR"] == sent[RecordKind.STDERR]
    await journal.aclose()


async def test_without_readers_the_oldest_part_goes_and_readers_are_told(tmp_path: Path, ids: Ids) -> None:
    journal = Journal.create(tmp_path / "j", ids.head(), limit_bytes=SMALL_LIMIT)
    size = 40 * BLOCK_SIZE
    stream = content(size)
    for offset in range(0, size, 65_536):
        await journal.append_output(RecordKind.STDOUT, offset, stream[offset : offset + 65_536])
        assert journal.path.stat().st_blocks * 512 <= SMALL_LIMIT + BLOCK_SIZE
    for opened in (journal, Journal.open(journal.path, limit_bytes=SMALL_LIMIT)):
        records = [record async for record in read_journal(opened, 0, follow=False)]
        gaps = [record for record in records if isinstance(record, Trimmed)]
        assert gaps == [Trimmed(journal.oldest)]
        index = records.index(gaps[0])
        for part in (records[:index], records[index + 1 :]):
            for record in part:
                assert isinstance(record, JournalRecord)
                assert record.payload == stream[record.stream_offset : record.stream_offset + len(record.payload)]
        last = records[-1]
        assert isinstance(last, JournalRecord)
        assert last.stream_offset + len(last.payload) == size
        # An event id from before the gap is answered with the gap, too.
        resumed = [record async for record in read_journal(opened, 2 * BLOCK_SIZE + 77, follow=False)]
        assert resumed == records[index:]


async def test_an_attached_reader_holds_the_writer_back_and_loses_nothing(tmp_path: Path, ids: Ids) -> None:
    journal = Journal.create(tmp_path / "j", ids.head(), limit_bytes=SMALL_LIMIT)
    size = 40 * BLOCK_SIZE
    stream, got = content(size), bytearray()

    async def write() -> None:
        for offset in range(0, size, 65_536):
            await journal.append_output(RecordKind.STDOUT, offset, stream[offset : offset + 65_536])
        await journal.append_event(RecordKind.PROCESS_EXITED, {"exit_code": 0})

    async with anyio.create_task_group() as tasks:
        records = read_journal(journal, 0, follow=True)
        tasks.start_soon(write)
        async for record in records:
            assert isinstance(record, JournalRecord)
            got += record.payload if record.kind.is_output else b""
            await anyio.sleep(0.001)
            assert journal.path.stat().st_blocks * 512 <= SMALL_LIMIT + BLOCK_SIZE
    assert got == stream


async def test_a_reader_that_leaves_lets_the_writer_go_on(tmp_path: Path, ids: Ids) -> None:
    journal = Journal.create(tmp_path / "j", ids.head(), limit_bytes=SMALL_LIMIT)
    await journal.append_output(RecordKind.STDOUT, 0, b"x")
    records = read_journal(journal, 0, follow=True)
    await anext(records)
    done = anyio.Event()

    async def write() -> None:
        for number in range(1, 2 * SMALL_LIMIT, 65_536):
            await journal.append_output(RecordKind.STDOUT, number, bytes(65_536))
        done.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        with anyio.move_on_after(0.3):
            await done.wait()
        assert not done.is_set()
        await records.aclose()
        with anyio.fail_after(10):
            await done.wait()


async def test_damage_in_the_middle_is_told_and_skipped(tmp_path: Path, ids: Ids) -> None:
    journal = Journal.create(tmp_path / "j", ids.head(), limit_bytes=LIMIT)
    await journal.append_output(RecordKind.STDOUT, 0, content(5 * BLOCK_SIZE))
    with journal.path.open("r+b") as file:
        file.seek(2 * BLOCK_SIZE)
        file.write(os.urandom(1) + b"\xff" * 50)
    records = [record async for record in read_journal(journal, 0, follow=False)]
    assert [record for record in records if isinstance(record, Trimmed)] == [Trimmed(3 * BLOCK_SIZE)]


@pytest.mark.parametrize("mib", [64, pytest.param(1024, marks=pytest.mark.soak)])
async def test_a_long_journal_takes_no_memory_of_fast_or_slow_readers(tmp_path: Path, ids: Ids, mib: int) -> None:
    size = mib << 20
    journal = Journal.create(tmp_path / "j", ids.head(), limit_bytes=LIMIT)
    chunk = content(65_536)
    slow = read_journal(journal, 0, follow=True)
    for offset in range(0, size, len(chunk)):
        await journal.append_output(RecordKind.STDOUT, offset, chunk)
        if offset == 0:
            await anext(slow)
    await journal.append_event(RecordKind.PROCESS_EXITED, {"exit_code": 0})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    total = 0
    async for record in read_journal(journal, 0, follow=True):
        assert isinstance(record, JournalRecord)
        total += len(record.payload) if record.kind.is_output else 0
    second = await anext(slow)
    assert isinstance(second, JournalRecord)
    assert second.stream_offset == 65_536
    await slow.aclose()
    assert total == size
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 << 10  # KiB


async def test_readers_end_when_the_journal_is_closed_under_them(tmp_path: Path, ids: Ids) -> None:
    journal = Journal.create(tmp_path / "j", ids.head(), limit_bytes=LIMIT)
    await journal.append_output(RecordKind.STDOUT, 0, b"x")
    found = []

    async def follow() -> None:
        found.extend([record async for record in read_journal(journal, 0, follow=True)])

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await anyio.sleep(0.01)
            await journal.aclose()
            await journal.append_output(RecordKind.STDOUT, 1, b"dropped")
    assert len(found) == 1

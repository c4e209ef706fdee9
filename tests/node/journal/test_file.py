import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.node.conftest import Ids

from space.core.journal import JournalRecord, RecordKind, Trimmed
from space.node.journal.file import Journal
from space.node.journal.layout import BLOCK_SIZE, Damaged
from space.node.journal.reader import read_journal

pytestmark = pytest.mark.anyio

LIMIT = 4 << 30


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def read(journal: Journal, start: int = 0) -> list[JournalRecord | Trimmed]:
    return [record async for record in read_journal(journal, start, follow=False)]


def output(records: list[JournalRecord | Trimmed], kind: RecordKind = RecordKind.STDOUT) -> bytes:
    return b"".join(r.payload for r in records if isinstance(r, JournalRecord) and r.kind is kind)


@pytest.fixture
def journal(tmp_path: Path, ids: Ids) -> Journal:
    return Journal.create(tmp_path / "j", ids.head(), limit_bytes=LIMIT)


async def test_what_was_appended_is_read_in_order(journal: Journal) -> None:
    await journal.append_event(RecordKind.PROCESS_STARTED, {"os_pid": 7, "at": "2026-01-01T00:00:00Z"})
    await journal.append_output(RecordKind.STDOUT, 0, b"one")
    await journal.append_output(RecordKind.STDERR, 0, b"two")
    await journal.append_output(RecordKind.STDOUT, 3, b"three")
    records = await read(journal)
    assert [(r.kind, r.stream_offset, r.payload) for r in records[1:]] == [
        (RecordKind.STDOUT, 0, b"one"),
        (RecordKind.STDERR, 0, b"two"),
        (RecordKind.STDOUT, 3, b"three"),
    ]
    assert records[-1].position == journal.end


async def test_output_that_is_there_already_is_dropped(journal: Journal) -> None:
    await journal.append_output(RecordKind.STDOUT, 0, b"abcdef")
    await journal.append_output(RecordKind.STDOUT, 2, b"cdefgh")
    await journal.append_output(RecordKind.STDOUT, 0, b"abc")
    assert output(await read(journal)) == b"abcdefgh"


async def test_output_with_a_gap_is_refused(journal: Journal) -> None:
    await journal.append_output(RecordKind.STDOUT, 0, b"abc")
    with pytest.raises(ValueError, match="only 3 bytes"):
        await journal.append_output(RecordKind.STDOUT, 4, b"e")


async def test_nothing_follows_the_final_record(journal: Journal) -> None:
    await journal.append_event(RecordKind.PROCESS_EXITED, {"exit_code": 0})
    await journal.append_output(RecordKind.STDOUT, 0, b"late")
    await journal.append_event(RecordKind.SANDBOX_LOST, {"reason": "oom"})
    assert [record.kind for record in await read(journal)] == [RecordKind.PROCESS_EXITED]
    assert not journal.status().is_lost


async def test_the_status_is_the_same_after_opening_again(journal: Journal) -> None:
    await journal.append_event(RecordKind.PROCESS_STARTED, {"os_pid": 7, "at": "2026-01-01T00:00:00Z"})
    await journal.append_output(RecordKind.STDERR, 0, bytes(3 * BLOCK_SIZE))
    await journal.append_event(RecordKind.PROCESS_EXITED, {"exit_code": 3, "at": "2026-01-01T00:00:02Z"})
    status = Journal.open(journal.path, limit_bytes=LIMIT).status()
    assert status == journal.status()
    assert (status.os_pid, status.exit_code, status.stderr_bytes) == (7, 3, 3 * BLOCK_SIZE)
    assert status.exited_at is not None
    assert status.exited_at.second == 2


async def test_an_ended_journal_keeps_no_descriptor(journal: Journal) -> None:
    before = descriptors()
    await journal.append_event(RecordKind.PROCESS_EXITED, {"exit_code": 0})
    assert descriptors() == before - 1
    Journal.open(journal.path, limit_bytes=LIMIT)
    assert descriptors() == before - 1


@pytest.mark.parametrize("content", [b"", b"\x80\0\0", bytes(5000), b"\x80\0\0\0\x02" + bytes(8) + b"{}"])
def test_a_file_that_is_no_journal_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(Damaged):
        Journal.open(tmp_path / "j", limit_bytes=LIMIT)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(1, 200), st.integers(60_000, 300_000)), min_size=1, max_size=8),
    cut=st.integers(0, 400_000),
    garbage=st.binary(max_size=40),
)
async def test_a_torn_tail_is_cut_off_and_the_rest_appended_again(
    journal: Journal, tmp_path: Path, ids: Ids, sizes: list[int], cut: int, garbage: bytes
) -> None:
    path = tmp_path / ids.session()
    journal = Journal.create(path, ids.head(), limit_bytes=LIMIT)
    head_end = journal.end
    stream = bytes(i * 7 % 251 for i in range(sum(sizes)))
    offset = 0
    for size in sizes:
        await journal.append_output(RecordKind.STDOUT, offset, stream[offset : offset + size])
        offset += size
    whole = await read(journal)
    await journal.aclose()
    os.truncate(path, max(head_end, journal.end - cut))

    opened = Journal.open(path, limit_bytes=LIMIT)
    assert opened.end == path.stat().st_size
    survived = await read(opened)
    assert survived == whole[: len(survived)]
    assert opened.bytes_of(RecordKind.STDOUT) == len(output(survived))
    have = max(0, opened.bytes_of(RecordKind.STDOUT) - len(garbage))  # the agent may send more than is missing
    await opened.append_output(RecordKind.STDOUT, have, stream[have:])
    assert output(await read(opened)) == stream
    await opened.aclose()


async def test_100_000_small_writes_are_all_there(journal: Journal) -> None:
    line = b"0123456789\n"
    for number in range(100_000):
        await journal.append_output(RecordKind.STDOUT, number * len(line), line)
    assert output(await read(journal)) == line * 100_000
    assert output(await read(Journal.open(journal.path, limit_bytes=LIMIT))) == line * 100_000

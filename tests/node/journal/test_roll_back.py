"""A journal whose process was restored from an earlier moment."""

import json
from pathlib import Path

import pytest
from tests.node.conftest import Ids

from space.core.journal import JournalRecord, RecordKind
from space.node.journal.folder import JournalFolder
from space.node.journal.layout import BLOCK_SIZE

pytestmark = pytest.mark.anyio


async def records(folder: JournalFolder, journal: object, start: int = 0) -> list[JournalRecord]:
    found = folder.read(journal.head.session_id, start=start, follow=False)  # type: ignore[attr-defined]
    return [each async for each in found]  # type: ignore[misc]


async def test_streams_go_on_from_the_offsets_of_the_moment(journals: JournalFolder, ids: Ids) -> None:
    journal = journals.create(ids.head())
    await journal.append_output(RecordKind.STDOUT, 0, b"abcdef")
    await journal.append_output(RecordKind.STDERR, 0, b"xyz")
    await journal.roll_back((4, 1, 0))
    await journal.append_output(RecordKind.STDOUT, 4, b"EF!")
    await journal.append_output(RecordKind.STDERR, 0, b"xY")
    told = [(each.kind.name, each.stream_offset, each.payload) for each in await records(journals, journal)]
    assert told == [
        ("STDOUT", 0, b"abcdef"),
        ("STDERR", 0, b"xyz"),
        ("ROLLED_BACK", 0, b'{"stdout_offset":4,"stderr_offset":1}'),
        ("STDOUT", 4, b"EF!"),
        ("STDERR", 1, b"Y"),
    ]
    assert journal.written == (7, 2, 0)


@pytest.mark.parametrize("before", [0, BLOCK_SIZE - 200, BLOCK_SIZE + 1])
async def test_it_is_read_back_as_it_was(journals: JournalFolder, ids: Ids, tmp_path: Path, before: int) -> None:
    journal = journals.create(ids.head(is_pty=True))
    await journal.append_output(RecordKind.PTY, 0, b"p" * (before + 10))
    await journal.append_event(RecordKind.SANDBOX_LOST, {"reason": "oom"})
    await journal.roll_back((0, 0, before + 3))
    again = JournalFolder(tmp_path / "journals", limit_bytes=4 << 30)
    again.load()
    (found,) = again.unfinished()
    assert found.written == (0, 0, before + 3)
    await found.append_output(RecordKind.PTY, before + 3, b"q" * BLOCK_SIZE)
    last = JournalFolder(tmp_path / "journals", limit_bytes=4 << 30)
    last.load()
    assert [each.written for each in last.unfinished()] == [(0, 0, before + 3 + BLOCK_SIZE)]


async def test_an_end_that_was_undone_is_not_told_again(journals: JournalFolder, ids: Ids) -> None:
    journal = journals.create(ids.head())
    await journal.append_output(RecordKind.STDOUT, 0, b"abc")
    await journal.append_event(RecordKind.SANDBOX_LOST, {"reason": "oom"})
    seen = await records(journals, journal)
    assert seen[-1].kind is RecordKind.SANDBOX_LOST
    await journal.roll_back((3, 0, 0))
    assert not journal.is_final
    kinds = [each.kind for each in await records(journals, journal)]
    assert kinds == [RecordKind.STDOUT, RecordKind.ROLLED_BACK]
    (after,) = await records(journals, journal, start=seen[-1].position)
    assert json.loads(after.payload) == {"stdout_offset": 3, "stderr_offset": 0}


async def test_rolling_back_twice_says_so_once(journals: JournalFolder, ids: Ids) -> None:
    journal = journals.create(ids.head())
    await journal.append_output(RecordKind.STDOUT, 0, b"abc")
    await journal.roll_back((1, 0, 0))
    await journal.roll_back((1, 0, 0))
    assert len(await records(journals, journal)) == 2
    await journal.append_output(RecordKind.STDOUT, 1, b"x")
    await journal.roll_back((1, 0, 0))
    assert len(await records(journals, journal)) == 4


async def test_a_copy_replaces_a_shorter_journal_and_is_cut_at_the_moment(
    journals: JournalFolder, ids: Ids, tmp_path: Path
) -> None:
    journal = journals.create(ids.head())
    await journal.append_output(RecordKind.STDOUT, 0, b"abc")
    copy = tmp_path / "copy"
    copy.write_bytes(journal.path.read_bytes())
    position = journal.end
    with copy.open("ab") as file:
        file.write(b"what came later")
    await journals.forget(journal.head.session_id)
    installed = await journals.install(journal.head.session_id, copy, position)
    assert (installed.end, installed.written) == (position, (3, 0, 0))
    assert [each.payload for each in await records(journals, installed)] == [b"abc"]

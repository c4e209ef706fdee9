"""Journals that a crash of the host, or another version, left unreadable."""

import os
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.node.conftest import Ids

from space.core.journal import RecordKind
from space.node.journal.file import Journal
from space.node.journal.folder import JournalFolder
from space.node.journal.layout import RECORD, encode_head

pytestmark = pytest.mark.anyio
LIMIT = 1 << 30


def folder(path: Path) -> JournalFolder:
    made = JournalFolder(path, limit_bytes=LIMIT)
    made.load()
    return made


async def test_one_whose_maker_died_is_removed_and_can_be_made_again(tmp_path: Path, ids: Ids) -> None:
    head = ids.head()
    for torn in (b"", encode_head(head.encode())[:40]):
        (tmp_path / head.session_id).write_bytes(torn)
        journals = folder(tmp_path)
        assert journals.find(head.session_id) is None
        assert not list(tmp_path.iterdir())
    await journals.create(head).aclose()


@pytest.mark.parametrize("kind", [RecordKind.PROCESS_STARTED, RecordKind.PROCESS_EXITED])
@pytest.mark.parametrize("payload", [bytes(20), b"[]", b'{"at":7}', b'"at"'])
async def test_one_with_an_unreadable_event_is_put_aside_and_the_others_are_read(
    tmp_path: Path, ids: Ids, kind: RecordKind, payload: bytes
) -> None:
    bad, good = ids.head(), ids.head()
    for head in (bad, good):
        await Journal.create(tmp_path / head.session_id, head, limit_bytes=LIMIT).aclose()
    with (tmp_path / bad.session_id).open("ab") as file:
        file.write(RECORD.pack(kind, len(payload), 0) + payload)
    before = (tmp_path / bad.session_id).read_bytes()
    journals = folder(tmp_path)
    assert journals.find(bad.session_id) is None
    assert journals.find(good.session_id) is not None
    assert (tmp_path / f"{bad.session_id}.damaged").read_bytes() == before
    await journals.aclose()


async def test_one_of_a_later_version_is_kept_for_it(tmp_path: Path, ids: Ids) -> None:
    head = ids.head()
    content = encode_head(head.encode().replace(b'"version": 1', b'"version": 2'))
    (tmp_path / head.session_id).write_bytes(content)
    assert folder(tmp_path).find(head.session_id) is None
    assert (tmp_path / f"{head.session_id}.damaged").read_bytes() == content


async def test_what_was_put_aside_goes_when_journals_of_its_age_go(tmp_path: Path, ids: Ids) -> None:
    old, new = tmp_path / f"{ids.session()}.damaged", tmp_path / f"{ids.session()}.damaged"
    for path in (old, new):
        path.write_bytes(bytes(5000))
    os.utime(old, (1000, 1000))
    await folder(tmp_path).expire(2000)
    assert list(tmp_path.iterdir()) == [new]


async def test_removing_many_leaves_others_their_turn(tmp_path: Path, ids: Ids) -> None:
    journals = folder(tmp_path)
    for _ in range(50):
        await journals.create(ids.head()).append_event(RecordKind.PROCESS_EXITED, {})
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        await anyio.lowlevel.checkpoint()
        before = turns
        assert len(await journals.expire(2**40)) == 50
        assert turns - before >= 50
        tasks.cancel_scope.cancel()


def test_no_head_is_longer_than_a_torn_one_may_be(ids: Ids) -> None:
    head = ids.head(is_pty=True)
    assert len(encode_head(replace(head, ref=replace(head.ref, generation=2**63)).encode())) < 1024

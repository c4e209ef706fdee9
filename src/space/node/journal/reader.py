"""Reading a journal: pulled, from any event id, with one block in memory and a descriptor of one's own."""

import os
from collections.abc import AsyncGenerator

import structlog

from space.core.errors import InvalidRequest
from space.core.journal import JournalRecord, Trimmed
from space.node.journal import disk, layout
from space.node.journal.file import Journal
from space.node.journal.layout import BLOCK_SIZE, block_of

log = structlog.get_logger(__name__)


async def read_journal(journal: Journal, start: int, *, follow: bool) -> AsyncGenerator[JournalRecord | Trimmed, None]:
    """Yield the records after `start`, whole, once and in order; see `NodeClient.read_session`."""
    fd = os.open(journal.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        await _check(journal, fd, start)
        with journal.attached(start) as reader:
            while reader.position < journal.end or (follow and not journal.is_over):
                if reader.position >= journal.end:
                    await journal.wait_for_more()
                    continue
                if BLOCK_SIZE <= reader.position < journal.oldest:
                    reader.position = journal.oldest
                    yield Trimmed(journal.oldest)
                position = reader.position
                until = min(block_of(position) + BLOCK_SIZE, journal.end)
                data = await disk.read_at(fd, position, until - position)
                try:
                    for record in layout.decode(data, position):
                        reader.position = record.position
                        if record.kind.is_final and record.position < journal.end:
                            continue  # a restore undid this end; whoever saw it then reads on from after it
                        yield record
                except layout.Damaged as error:
                    log.error("journal.damaged", session=journal.head.session_id, position=error.args[0])
                    yield Trimmed(until)
                reader.position = until
                journal.advanced()
    finally:
        os.close(fd)


async def _check(journal: Journal, fd: int, start: int) -> None:
    """Raise `InvalidRequest` unless a record ends at `start`; what was trimmed cannot be checked any more."""
    wrong = InvalidRequest(f"{start} is no event id of this session; give one that it sent, or 0", field="from")
    if not 0 <= start <= journal.end:
        raise wrong
    block = block_of(start)
    if start in (block, journal.end) or BLOCK_SIZE <= start < journal.oldest:
        return
    data = await disk.read_at(fd, block, start - block)
    if not layout.is_border(data, block, start):
        raise wrong

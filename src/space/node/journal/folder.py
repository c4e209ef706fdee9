"""All journals of this node: `journals/<session id>`."""

import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from pathlib import Path

import anyio.lowlevel
import anyio.to_thread
import structlog

from space.core.errors import Conflict, NotFound
from space.core.ids import SessionId, is_id
from space.core.journal import JournalRecord, Trimmed
from space.node.full_disk import full_disk_refuses
from space.node.journal import layout
from space.node.journal.disk import sparse_copy
from space.node.journal.file import Journal
from space.node.journal.layout import Damaged
from space.node.journal.reader import read_journal
from space.node.journal.summary import JournalHead

log = structlog.get_logger(__name__)

_LONGEST_HEAD = 1024  #: bytes; no journal's head is longer
_DAMAGED = ".damaged"
_NEW = ".new"  #: a copy that a crash left half made
_ENDED_IN_MEMORY = 1024  #: summaries of ended journals kept to save opening them again


class JournalFolder:
    """Creates, finds and removes journals.  Ones that are still written to stay open, the others cost no descriptor."""

    def __init__(self, path: Path, *, limit_bytes: int) -> None:
        self._path = path
        self._limit = limit_bytes
        self._open: dict[SessionId, Journal] = {}
        self._ended: OrderedDict[SessionId, Journal] = OrderedDict()

    def load(self) -> None:
        """Open every journal that has not ended; remove what a crash left half made."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for session_id in self.sessions():
            try:
                self.find(session_id)
            except OSError as error:  # one that cannot be read must not keep the node from all others
                log.error("journal.unreadable", session=session_id, error=str(error))

    async def aclose(self) -> None:
        for journal in self._open.values():
            await journal.aclose()

    def sessions(self) -> list[SessionId]:
        """Return the session of every journal on disk."""
        with os.scandir(self._path) as entries:
            return sorted(SessionId(entry.name) for entry in entries if is_id(entry.name, "ses"))

    def unfinished(self) -> Iterator[Journal]:
        """Yield the journals whose process has not been seen to end."""
        yield from [journal for journal in self._open.values() if not journal.is_final]

    def create(self, head: JournalHead) -> Journal:
        """Make a journal, or return the one that this process has already.

        Raises:
            Conflict: the session belongs to another process.
            InsufficientStorage: the disk is full.
        """
        known = self.find(head.session_id)
        if known is not None:
            if known.head.process_id != head.process_id:
                raise Conflict(f"session {head.session_id} belongs to process {known.head.process_id}")
            return known
        with full_disk_refuses("another journal"):
            journal = Journal.create(self._path / head.session_id, head, limit_bytes=self._limit)
        self._open[head.session_id] = journal
        return journal

    def find(self, session_id: SessionId) -> Journal | None:
        """Return a session's journal, or None if this node has none."""
        journal = self._open.get(session_id) or self._ended.get(session_id)
        if journal is None and is_id(session_id, "ses"):
            journal = self._load(session_id)
        if journal is None:
            return None
        if journal.is_final:
            self._open.pop(session_id, None)
            self._ended[session_id] = journal
            self._ended.move_to_end(session_id)
            if len(self._ended) > _ENDED_IN_MEMORY:
                self._ended.popitem(last=False)
        else:
            self._ended.pop(session_id, None)
            self._open[session_id] = journal
        return journal

    async def install(self, session_id: SessionId, source: Path, length: int) -> Journal:
        """Take a copy's first `length` bytes for the session's journal, in place of a shorter one that is here.

        Raises:
            InsufficientStorage: the disk is full; what was here stays.
        """
        temporary = self._path / f"{session_id}{_NEW}"
        with full_disk_refuses("another journal"):
            await anyio.to_thread.run_sync(sparse_copy, source, temporary, length)
        await self.forget(session_id)
        temporary.replace(self._path / session_id)
        journal = self.find(session_id)
        if journal is None:
            raise ValueError(f"the copy of the journal of {session_id} is damaged")
        return journal

    def _load(self, session_id: SessionId) -> Journal | None:
        path = self._path / session_id
        try:
            return Journal.open(path, limit_bytes=self._limit)
        except FileNotFoundError:
            return None
        except Damaged:
            self._discard(session_id)
            return None

    def _discard(self, session_id: SessionId) -> None:
        """Remove a file that its maker never came to tell of; put aside one that held a journal, for a human."""
        path = self._path / session_id
        with path.open("rb") as file:
            first = file.read(_LONGEST_HEAD)
        if len(first) < _LONGEST_HEAD and not layout.holds_head(first):
            log.warning("journal.discarded", session=session_id, bytes=len(first))
            path.unlink()
        else:
            log.error("journal.damaged", session=session_id, kept_as=f"{session_id}{_DAMAGED}")
            path.rename(path.with_name(f"{session_id}{_DAMAGED}"))

    async def read(
        self, session_id: SessionId, *, start: int, follow: bool
    ) -> AsyncGenerator[JournalRecord | Trimmed, None]:
        """Yield a session's records; raises `NotFound`."""
        journal = self.find(session_id)
        if journal is None:
            raise NotFound(f"session {session_id} has no journal here; it may have been removed")
        records = read_journal(journal, start, follow=follow)
        try:
            async for record in records:
                yield record
        finally:
            await records.aclose()

    async def forget(self, session_id: SessionId) -> None:
        """Remove a journal for good; readers that are attached read on until they leave."""
        if not is_id(session_id, "ses"):
            return
        journal = self._open.pop(session_id, None) or self._ended.pop(session_id, None)
        if journal is not None:
            await journal.aclose()
        (self._path / session_id).unlink(missing_ok=True)

    def _unchanged_since(self, when: float) -> list[SessionId]:
        """Return the sessions whose journal was last written to before `when` (seconds since 1970)."""
        old = []
        with os.scandir(self._path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # forgotten at this moment
                    if entry.stat().st_mtime < when:
                        old.append(entry.name)
        for name in old:
            if name.endswith((_DAMAGED, _NEW)):
                (self._path / name).unlink(missing_ok=True)
        return [SessionId(name) for name in old if is_id(name, "ses")]

    async def expire(self, older_than: float) -> list[SessionId]:
        """Remove the journals that ended before `older_than` (seconds since 1970); return their sessions."""
        expired = []
        for session_id in await anyio.to_thread.run_sync(self._unchanged_since, older_than):
            journal = self.find(session_id)
            if journal is not None and journal.is_final:
                await self.forget(session_id)
                expired.append(session_id)
            await anyio.lowlevel.checkpoint()  # after a long absence of the node there are thousands
        return expired

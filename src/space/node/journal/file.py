"""One journal: a file with one writer and any number of readers."""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import structlog

from space.core.journal import JournalRecord, RecordKind
from space.core.ports import SessionStatus
from space.host.failpoint import failpoint
from space.node.journal import disk, layout
from space.node.journal.layout import BLOCK_SIZE, RECORD, block_of
from space.node.journal.summary import JournalHead, Summary

log = structlog.get_logger(__name__)

_RETRY_SECONDS = (0.05, 1.0)  #: first and longest pause between attempts to write to a full disk


@dataclass(slots=True, eq=False)
class Reader:
    """How far an attached reader is: nothing from `position` on may be trimmed."""

    position: int


class Journal:
    """An append-only file; this object is its only writer.

    `append_…` returns once the kernel has the bytes: they survive the death of this process, not that of the host
    (which takes the machine along).  A full disk holds the writer back until there is room.  Over the size limit,
    what every attached reader has seen is trimmed; the writer waits if that is too little.
    """

    def __init__(self, path: Path, fd: int, head: JournalHead, *, limit_bytes: int) -> None:
        self.path = path
        self.summary = Summary(head)
        self.end = 0  #: offset after the last record
        self.oldest = 0  #: start of the oldest block that was kept after the first; 0: nothing was trimmed
        self.written = (0, 0, 0)  #: bytes of stdout, stderr and pty
        self.held_back: str | None = None  #: why nothing can be written at the moment
        self._fd = fd
        self._is_closed = False
        self._disk = disk.Writer(fd)
        self._limit = max(limit_bytes, 4 * BLOCK_SIZE)
        self._lock = asyncio.Lock()
        self._readers: set[Reader] = set()
        self._more = asyncio.Event()
        self._room = asyncio.Event()

    @classmethod
    def create(cls, path: Path, head: JournalHead, *, limit_bytes: int) -> "Journal":
        """Make a new journal; raises FileExistsError."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        data = layout.encode_head(head.encode())
        try:
            failpoint("journal.after_create")
            disk.write_all(fd, [data], 0)
        except BaseException:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        journal = cls(path, fd, head, limit_bytes=limit_bytes)
        journal.end = len(data)
        return journal

    @classmethod
    def open(cls, path: Path, *, limit_bytes: int) -> "Journal":
        """Open a journal, cutting off a torn tail; raises `layout.Damaged` if the file is none."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            first = os.pread(fd, BLOCK_SIZE, 0)
            measured = layout.measure(first, 0)
            _, length, oldest = RECORD.unpack_from(first, 0)
            after_head = RECORD.size + length
            journal = cls(path, fd, JournalHead.decode(first[RECORD.size : after_head]), limit_bytes=limit_bytes)
            journal.oldest = oldest
            for record in layout.decode(first[after_head : measured.end], after_head):
                journal.summary.note(record)
                break
            size = os.fstat(fd).st_size
            block = block_of(max(size - 1, 0))
            while block:
                try:
                    measured = layout.measure(os.pread(fd, BLOCK_SIZE, block), block)
                    break
                except layout.Damaged:
                    block -= BLOCK_SIZE
            journal.end, journal.written = measured.end, measured.written
            if measured.end < size:
                os.ftruncate(fd, measured.end)
            if oldest:
                with suppress(OSError):  # a crash may have come between the mark and the hole
                    disk.punch_hole(fd, BLOCK_SIZE, oldest - BLOCK_SIZE)
            if measured.last is not None:
                journal.summary.note(measured.last)
            journal.status()
        except (ValueError, TypeError, AttributeError) as error:
            os.close(fd)
            raise layout.Damaged(0) from error
        except BaseException:
            os.close(fd)
            raise
        if journal.is_final:
            journal._release()
        return journal

    async def aclose(self) -> None:
        """Stop writing: what is appended later is dropped.  Readers have descriptors of their own and go on."""
        self._is_closed = True
        self._room.set()
        self._more.set()
        async with self._lock:
            self._release()

    def _release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._is_closed = -1, True

    @property
    def head(self) -> JournalHead:
        return self.summary.head

    @property
    def is_over(self) -> bool:
        """Whether nothing will be appended any more: it is final, or was closed."""
        return self._is_closed

    @property
    def is_final(self) -> bool:
        return self.summary.final is not None

    @property
    def has_started(self) -> bool:
        return bool(self.summary.started)

    def bytes_of(self, kind: RecordKind) -> int:
        """Return how many bytes of an output stream were written so far."""
        return self.written[layout.STREAMS[kind]]

    def status(self) -> SessionStatus:
        return self.summary.status(self.written, held_back=self.held_back)

    # Writing

    async def append_event(self, kind: RecordKind, body: Mapping[str, Any]) -> None:
        """Append a record of JSON; nothing happens after the final one.  The size limit does not concern it."""
        async with self._lock:
            if not self._is_closed:
                await self._write(kind, 0, json.dumps(body, separators=(",", ":")).encode())

    async def append_output(self, kind: RecordKind, stream_offset: int, data: bytes) -> None:
        """Append output; what the journal has already is dropped, a gap raises ValueError."""
        async with self._lock:
            have = self.bytes_of(kind)
            if stream_offset > have:
                raise ValueError(f"output at offset {stream_offset}, but only {have} bytes came before it")
            new = memoryview(data)[have - stream_offset :]
            if new and not self._is_closed:
                if self.end + len(new) - self._kept_from() + BLOCK_SIZE > self._limit:
                    await self._make_room(len(new))
                await self._write(kind, have, new)

    async def _write(self, kind: RecordKind, stream_offset: int, payload: bytes | memoryview) -> None:
        encoded = layout.encode(self.end, self.written, kind, stream_offset, payload)
        pause, longest = _RETRY_SECONDS
        failpoint("journal.before_write")
        while not self._is_closed:
            try:
                await self._disk.write(encoded.buffers, self.end)
                break
            except OSError as error:
                if self.held_back is None:
                    log.error("journal.write_failed", session=self.head.session_id, error=error.strerror)
                self.held_back = f"output held back: {error.strerror} on the disk that holds the journals"
            await anyio.sleep(pause)
            pause = min(2 * pause, longest)
        else:
            return
        failpoint("journal.after_write")
        if self.held_back is not None:
            log.info("journal.write_recovered", session=self.head.session_id)
            self.held_back = None
        self.end, self.written = encoded.end, encoded.written
        self.summary.is_rolled_back = False
        if not kind.is_output:
            self._note(JournalRecord(self.end, kind, stream_offset, bytes(payload)))
        self._more.set()
        self._more = asyncio.Event()

    def _note(self, record: JournalRecord) -> None:
        self.summary.note(record)
        if self.is_final:
            self._release()

    async def roll_back(self, offsets: tuple[int, int, int]) -> None:
        """Go on from earlier offsets of stdout, stderr and pty: the process was restored from then.

        What was written since stays readable.  An end that the journal has is undone.  Idempotent until something
        else is appended.
        """
        async with self._lock:
            if self.summary.is_rolled_back and self.written == offsets:
                return
            if self.is_final and self._fd < 0:
                self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
                self._disk = disk.Writer(self._fd)
                self._is_closed = False
            stdout, stderr, pty = offsets
            body = {"stdout_offset": stdout + pty, "stderr_offset": stderr, **({"pty_offset": pty} if pty else {})}
            await self._write(RecordKind.ROLLED_BACK, 0, json.dumps(body, separators=(",", ":")).encode())

    def sync(self) -> None:
        """Return once all of it is on the disk."""
        if self._fd >= 0:
            os.fsync(self._fd)

    # The size limit

    def _kept_from(self) -> int:
        return max(self.oldest, BLOCK_SIZE)

    async def _make_room(self, length: int) -> None:
        while (excess := self.end + length - self._kept_from() + BLOCK_SIZE - self._limit) > 0:
            kept_from = self._kept_from()
            # In steps of a sixteenth, so that holes are few and large.
            wanted = block_of(kept_from + max(excess, self._limit // 16)) + BLOCK_SIZE
            seen = min((block_of(max(r.position, kept_from)) for r in self._readers), default=wanted)
            target = min(wanted, seen, block_of(self.end))
            if target > kept_from:
                await self._trim(kept_from, target)
            elif self._readers and not self._is_closed:
                self._room.clear()
                await self._room.wait()
            else:
                return

    async def _trim(self, start: int, oldest: int) -> None:
        os.pwrite(self._fd, oldest.to_bytes(8, "big"), layout.OLDEST_AT)
        self.oldest = oldest
        failpoint("journal.before_punch")
        try:
            await anyio.to_thread.run_sync(disk.punch_hole, self._fd, start, oldest - start)
        except OSError as error:
            # A file system without holes keeps the bytes; readers skip them all the same.
            log.error("journal.trim_failed", session=self.head.session_id, error=error.strerror)
        else:
            log.info("journal.trimmed", session=self.head.session_id, oldest=oldest)

    # For readers

    @contextmanager
    def attached(self, position: int) -> Iterator[Reader]:
        """Keep what follows `position` from being trimmed while the caller reads."""
        reader = Reader(position)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)
            self._room.set()

    def advanced(self) -> None:
        """Tell the writer that a reader went on to another block."""
        self._room.set()

    async def wait_for_more(self) -> None:
        """Return at the next append."""
        await self._more.wait()

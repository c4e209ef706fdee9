"""The highest generation that this node has seen of each sandbox: what fences late and repeated orders.

One line an entry is appended and synced before anything is done under it, so that no restart forgets a delete:

    SANDBOX GENERATION PHASE UNIX_SECONDS

A tombstone (`gone`) is kept for a week, far longer than any order can be under way, then compacted away.
"""

import asyncio
import errno
import os
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import anyio.to_thread
import structlog

from space.core.errors import RuntimeFailed, StaleGeneration
from space.core.ids import SandboxId, is_id
from space.core.node import MachineRef
from space.core.ports import Clock
from space.node.full_disk import FULL, full_disk_refuses

log = structlog.get_logger(__name__)

KEEP_TOMBSTONES = 7 * 24 * 3600  #: seconds
COMPACT_BYTES = 4 << 20  #: beyond twice what the last compaction left


class Phase(StrEnum):
    """How far the machine of the newest generation came."""

    SEEN = "seen"  #: ordered; perhaps half built
    RESTORING = "restoring"  #: the same, from a moment of its own: the open sessions of older generations wait for it
    UP = "up"  #: its agent has answered
    ENDED = "ended"  #: it ended by itself; a generation runs only once
    RELEASED = "released"  #: ended because the sandbox is suspended; its open sessions wait for a later generation
    GONE = "gone"  #: removed: the tombstone


STARTING = (Phase.SEEN, Phase.RESTORING)
_ORDER = {phase: number for number, phase in enumerate(Phase)}


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one sandbox."""

    generation: int
    phase: Phase
    at: int  #: seconds since 1970

    def line(self, sandbox_id: SandboxId) -> bytes:
        return f"{sandbox_id} {self.generation} {self.phase} {self.at}\n".encode()


@dataclass(slots=True)
class _Batch:
    """Lines that are written and synced together."""

    lines: list[bytes] = field(default_factory=list)
    is_done: bool = False
    error: OSError | None = None


class Generations:
    """The newest generation of each sandbox, on disk before it counts."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._known: dict[SandboxId, Entry] = {}
        self._unsaved: dict[SandboxId, Entry] = {}  #: known, but not on disk yet
        self._batch = _Batch()
        self._fd = -1
        self._size = 0
        self._compact_at = 0
        self._lock = asyncio.Lock()

    def load(self) -> None:
        """Read the file, drop old tombstones and what a crash tore, and open it for appending."""
        content = self._path.read_bytes() if self._path.exists() else b""
        for line in content.splitlines(keepends=True):
            found = _parse(line)
            if found is not None:
                self._known[found[0]] = found[1]
        try:
            self._rewrite(self._content())
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._go_on(content.rfind(b"\n") + 1)

    def _go_on(self, size: int) -> None:
        """Append to the file as it is, without its torn end: on a full disk it cannot be written anew."""
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, size)
        os.lseek(self._fd, size, os.SEEK_SET)
        self._size, self._compact_at = size, size + COMPACT_BYTES
        log.error("generations.not_compacted", error=os.strerror(errno.ENOSPC))

    def _content(self) -> bytes:
        """Forget old tombstones; return a file that holds the rest."""
        oldest = int(self._clock.now().timestamp()) - KEEP_TOMBSTONES
        known = self._known
        self._known = {key: entry for key, entry in known.items() if entry.phase is not Phase.GONE or entry.at > oldest}
        return b"".join(entry.line(sandbox_id) for sandbox_id, entry in self._known.items())

    def _rewrite(self, content: bytes) -> None:
        temporary = self._path.with_suffix(".new")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write(fd, content)
            os.fsync(fd)
            temporary.replace(self._path)
            _sync_directory(self._path.parent)
        except BaseException:
            os.close(fd)
            temporary.unlink(missing_ok=True)
            raise
        self.close()
        self._fd, self._size = fd, len(content)
        self._compact_at = 2 * len(content) + COMPACT_BYTES

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def get(self, sandbox_id: SandboxId) -> Entry | None:
        return self._known.get(sandbox_id)

    def keeps_sessions(self, sandbox_id: SandboxId) -> bool:
        """Whether open sessions wait for a machine that is still to come."""
        entry = self._known.get(sandbox_id)
        return entry is not None and entry.phase in (Phase.RESTORING, Phase.RELEASED)

    def check(self, ref: MachineRef) -> None:
        """Raise `StaleGeneration` if a newer generation, or the end of this one, has been seen."""
        entry = self._known.get(ref.sandbox_id)
        if entry is None or entry.generation < ref.generation:
            return
        if entry.generation > ref.generation:
            raise StaleGeneration(
                f"generation {ref.generation} of {ref.sandbox_id} is older than {entry.generation}",
                seen=entry.generation,
            )
        if entry.phase is Phase.GONE:
            raise StaleGeneration(f"{ref.sandbox_id} was removed in generation {ref.generation}", seen=entry.generation)

    def admit(self, ref: MachineRef) -> None:
        """As `check`, and refuse to start a machine that has run and ended already."""
        self.check(ref)
        entry = self._known.get(ref.sandbox_id)
        if entry is not None and entry.generation == ref.generation and entry.phase in (Phase.ENDED, Phase.RELEASED):
            raise RuntimeFailed(f"the machine of {ref.sandbox_id} in generation {ref.generation} has ended")

    async def record(self, ref: MachineRef, phase: Phase) -> None:
        """Note a generation and return once it is on disk.

        Raises:
            InsufficientStorage: the disk is full; for this process the entry counts all the same.
        """
        sandbox_id, known = ref.sandbox_id, self._known.get(ref.sandbox_id)
        entry = Entry(ref.generation, phase, int(self._clock.now().timestamp()))
        if known is not None and (known.generation, _ORDER[known.phase]) >= (ref.generation, _ORDER[phase]):
            if sandbox_id not in self._unsaved:
                return
            entry = known  # never backwards
        self._known[sandbox_id] = self._unsaved[sandbox_id] = entry
        batch = self._batch
        batch.lines.append(entry.line(sandbox_id))
        async with self._lock:
            if not batch.is_done:  # the first to come here writes for all that joined meanwhile
                self._batch, batch.is_done = _Batch(), True
                try:
                    await anyio.to_thread.run_sync(self._append, b"".join(batch.lines))
                except OSError as error:
                    batch.error = error
            with full_disk_refuses("the record of its machines"):
                if batch.error is not None:
                    raise batch.error
            if self._unsaved.get(sandbox_id) is entry:
                del self._unsaved[sandbox_id]
            if self._size > self._compact_at:
                await self._compact()

    async def _compact(self) -> None:
        try:
            await anyio.to_thread.run_sync(self._rewrite, self._content())
        except OSError as error:  # what was recorded is on disk all the same
            self._compact_at = self._size + COMPACT_BYTES
            log.error("generations.not_compacted", error=error.strerror)

    def _append(self, data: bytes) -> None:
        try:
            _write(self._fd, data)
            os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, self._size, os.SEEK_SET)
            raise
        self._size += len(data)


def _parse(line: bytes) -> tuple[SandboxId, Entry] | None:
    """Read one line; None for what is none, as after a crash of the host."""
    match line.decode(errors="replace").split(" "):
        case [sandbox_id, generation, phase, at] if is_id(sandbox_id, "sbx") and at.endswith("\n"):
            try:
                return SandboxId(sandbox_id), Entry(int(generation), Phase(phase), int(at))
            except ValueError:
                return None
    return None


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

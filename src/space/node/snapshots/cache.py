"""Images that are kept on this node's disk: `images/<manifest>/`, the least recently used ones go first."""

import asyncio
import os
import secrets
import shutil
from collections import OrderedDict
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from space.core.ids import SnapshotId
from space.node.snapshots.image import NOTE, Note, read_note
from space.node.snapshots.threads import Threads


@dataclass
class _Entry:
    note: Note
    pins: int = 0
    is_unwanted: bool = False  #: goes as soon as nobody has it open


class Cache:
    """Everything here is quick: an image that goes only loses its name, and its files are unlinked in a thread."""

    def __init__(self, directory: Path, most_bytes: int, threads: Threads) -> None:
        self._directory = directory
        self._most = most_bytes
        self._threads = threads
        self._leaving: set[Future[object]] = set()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        directory.mkdir(mode=0o700, exist_ok=True)
        for path in sorted(directory.iterdir(), key=_last_used):
            note = None if path.name.startswith(".") else read_note(path)
            if note is None:
                shutil.rmtree(path, ignore_errors=True)
            else:
                self._entries[path.name] = _Entry(note)

    @property
    def size(self) -> int:
        return sum(entry.note.size for entry in self._entries.values())

    def path(self, manifest: str) -> Path:
        return self._directory / manifest

    def find(self, manifest: str) -> bool:
        """Whether the image is there and whole; what is not is removed."""
        entry = self._entries.get(manifest)
        if entry is None:
            return False
        if entry.pins or read_note(self.path(manifest)) is not None:
            return True
        self._remove(manifest)
        return False

    def adopt(self, manifest: str, directory: Path, note: Note) -> None:
        """Take over a directory with a note, by renaming it."""
        if manifest in self._entries:
            self._bury(directory)
            return
        directory.rename(self.path(manifest))
        self._entries[manifest] = _Entry(note)

    @contextmanager
    def pinned(self, manifest: str) -> Iterator[Path]:
        """Keep an image that is there while the body runs."""
        entry = self._entries[manifest]
        entry.pins += 1
        self._entries.move_to_end(manifest)
        try:
            os.utime(self.path(manifest) / NOTE)
            yield self.path(manifest)
        finally:
            entry.pins -= 1
            if not entry.pins and entry.is_unwanted:
                self._remove(manifest)
            self.make_room(0)

    def make_room(self, size: int) -> None:
        """Remove what was not used for longest until `size` more bytes are within the limit; what is open stays."""
        over = self.size + size - self._most
        for manifest, entry in list(self._entries.items()):
            if over <= 0:
                return
            if not entry.pins:
                over -= entry.note.size
                self._remove(manifest)

    def discard(self, snapshot_id: SnapshotId) -> None:
        """Remove a snapshot's images, at once or when they are closed."""
        for manifest, entry in list(self._entries.items()):
            if entry.note.snapshot_id == snapshot_id:
                entry.is_unwanted = True
                if not entry.pins:
                    self._remove(manifest)

    async def settle(self) -> None:
        """Wait until what was removed takes no room any more."""
        await asyncio.gather(*map(asyncio.wrap_future, list(self._leaving)))

    def snapshots(self) -> Collection[SnapshotId]:
        return {entry.note.snapshot_id for entry in self._entries.values()}

    def _remove(self, manifest: str) -> None:
        """Forget an image; it first loses its name, so that no crash leaves half of one."""
        self._entries.pop(manifest, None)
        self._bury(self.path(manifest))

    def _bury(self, directory: Path) -> None:
        leaving = self._directory / f".{secrets.token_hex(8)}"
        try:
            directory.rename(leaving)
        except FileNotFoundError:
            return
        work = self._threads.start(shutil.rmtree, leaving, True)
        self._leaving.add(work)
        work.add_done_callback(self._leaving.discard)


def _last_used(path: Path) -> float:
    try:
        return (path / NOTE).stat().st_mtime
    except OSError:
        return 0.0

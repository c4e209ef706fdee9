"""Bringing a planned moment into the object store: chunks that it lacks, then the manifest."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from space.core.errors import FailedPrecondition, NotFound
from space.core.objects import chunk_key, manifest_key
from space.core.ports import ObjectInfo, ObjectStore
from space.core.snapshot import SnapshotOrder
from space.host.failpoint import failpoint
from space.node.snapshots.chunks import Run, gather, sources
from space.node.snapshots.image import FILES, INDEX, MANIFEST
from space.node.snapshots.manifest import Manifest
from space.node.snapshots.staging import Planned, index_pieces
from space.node.snapshots.stored import CHUNK, name_of_content, seal
from space.node.snapshots.threads import AT_ONCE, Threads, each

SENT = "sent"  #: in the directory of the moment: the size of each object that was put


class BaseLost(FailedPrecondition):
    """A chunk of the base is not in the object store any more."""


@dataclass(slots=True, kw_only=True)
class Upload:
    """One attempt; chunks of earlier ones are found to be there."""

    objects: ObjectStore
    threads: Threads
    order: SnapshotOrder
    directory: Path
    planned: Planned
    manifest: Manifest
    is_wanted: Callable[[], bool]
    sent: int = 0  #: bytes, by this attempt and those before it

    def __post_init__(self) -> None:
        with suppress(OSError, ValueError):
            self.sent = sum(int(line) for line in (self.directory / SENT).read_bytes().splitlines())

    async def run(self) -> None:
        """Put all that is missing; the manifest comes last, and only once everything else is there."""
        first_new, manifest = self.planned.first_new, self.manifest
        runs = sources(manifest, first_new)
        pieces = index_pieces((self.directory / INDEX).read_bytes())

        async def put_new(number: int) -> None:
            await self._put(
                manifest.chunks[first_new + number], lambda: self._gathered(first_new + number, runs[number])
            )

        async def put_index(number: int) -> None:
            await self._put(manifest.index[number], lambda: pieces[number])

        await each(range(len(runs)), put_new, at_once=AT_ONCE)
        await each(range(len(pieces)), put_index, at_once=AT_ONCE)
        await each(manifest.chunks[:first_new], self._require, at_once=AT_ONCE)
        failpoint("upload.after_chunks")
        stored = (self.directory / MANIFEST).read_bytes()
        await self.objects.put(manifest_key(self.order.project_id, self.planned.manifest), stored)
        self._count(len(stored))

    async def _put(self, name: bytes, content: Callable[[], bytes]) -> None:
        found = await self._find(name)
        stored = await self.threads.run(lambda: seal(content(), kind=CHUNK, name=name, key=self.order.key))
        if found is not None and found.size == len(stored):  # else a store that died in the middle kept a part of it
            return
        failpoint("upload.before_chunk")
        await self.objects.put(chunk_key(self.order.project_id, name), stored)
        failpoint("upload.after_chunk")
        self._count(len(stored))

    def _count(self, size: int) -> None:
        """Remember what was sent: the next attempt finds it there and cannot know who brought it."""
        self.sent += size
        with suppress(OSError), (self.directory / SENT).open("ab") as file:  # a full disk ends no upload
            file.write(b"%d\n" % size)

    async def _require(self, name: bytes) -> None:
        if await self._find(name) is None:
            raise BaseLost(
                f"the snapshot {self.order.snapshot_id} builds on a chunk that the object store has lost; try again"
            )

    async def _find(self, name: bytes) -> ObjectInfo | None:
        if not self.is_wanted():
            raise NotFound(f"the snapshot {self.order.snapshot_id} is not wanted any more")
        return await self.objects.head(chunk_key(self.order.project_id, name))

    def _gathered(self, number: int, runs: Sequence[Run]) -> bytes:
        content = bytes(gather(self.directory / FILES, self.manifest, runs, self.manifest.chunk_pages[number]))
        if name_of_content(content, key=self.order.key) != self.manifest.chunks[number]:
            raise FailedPrecondition(
                f"the snapshot {self.order.snapshot_id} changed after it was planned; make another one"
            )
        return content

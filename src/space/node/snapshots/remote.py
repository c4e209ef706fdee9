"""Reading and writing chunks and manifests in the object store, for one snapshot's project and key."""

from dataclasses import dataclass, field

from space.core.errors import FailedPrecondition, NotFound, PayloadTooLarge
from space.core.ids import ProjectId, SnapshotId
from space.core.objects import MAX_BYTES, chunk_key, manifest_key
from space.core.ports import ObjectStore
from space.node.snapshots.manifest import INDEX_PIECE, BadManifest, Manifest, decode
from space.node.snapshots.stored import CHUNK, MANIFEST, Damaged, most_stored, unseal
from space.node.snapshots.threads import AT_ONCE, Threads, each


@dataclass(frozen=True, slots=True)
class Remote:
    """The object store as one snapshot sees it."""

    objects: ObjectStore
    threads: Threads
    snapshot_id: SnapshotId
    project_id: ProjectId
    key: bytes = field(repr=False)

    async def manifest(self, name: str) -> tuple[Manifest, bytes]:
        """Return a manifest, and the object as it is stored.  Raises as `chunk` does."""
        where = manifest_key(self.project_id, name)
        for attempt in (1, 2):
            stored = await self._get(where, "its manifest", most=MAX_BYTES)
            try:
                return await self.threads.run(_open_manifest, stored, name, self.key), stored
            except (Damaged, BadManifest) as error:
                if attempt == 2:
                    raise self.damaged(f"its manifest: {error}") from error
        raise AssertionError

    async def chunk(self, name: bytes, size: int) -> bytes:
        """Return the content of a chunk, verified.

        Raises:
            FailedPrecondition: it is not there, or twice it was not what was stored.
            Unavailable: the object store fails.
        """
        where = chunk_key(self.project_id, name)
        for attempt in (1, 2):  # what was cut on its way is whole the next time
            stored = await self._get(where, "a chunk", most=most_stored(size))
            try:
                return await self.threads.run(_open_chunk, stored, name, self.key, size)
            except Damaged as error:
                if attempt == 2:
                    raise self.damaged(f"chunk {name.hex()}: {error}") from error
        raise AssertionError

    async def index(self, manifest: Manifest) -> bytes:
        """Return the hashes of all chunks' pages, one after the other.  Raises as `chunk` does."""
        pieces: list[bytes] = [b""] * len(manifest.index)

        async def fetch(number: int) -> None:
            size = min(INDEX_PIECE, manifest.index_size - number * INDEX_PIECE)
            pieces[number] = await self.chunk(manifest.index[number], size)

        await each(range(len(pieces)), fetch, at_once=AT_ONCE)
        return b"".join(pieces)

    def damaged(self, what: str) -> FailedPrecondition:
        return FailedPrecondition(
            f"the snapshot {self.snapshot_id} is damaged and cannot be used: {what}", snapshot_id=self.snapshot_id
        )

    async def _get(self, where: str, what: str, *, most: int) -> bytes:
        try:
            return await self.objects.get(where, most=most)
        except PayloadTooLarge:
            raise self.damaged(f"{what} is larger than it was written") from None
        except NotFound:
            raise self.damaged(f"{what} is missing in the object store") from None


def _open_manifest(stored: bytes, name: str, key: bytes) -> Manifest:
    return decode(unseal(stored, kind=MANIFEST, name=bytes.fromhex(name), key=key))


def _open_chunk(stored: bytes, name: bytes, key: bytes, size: int) -> bytes:
    return unseal(stored, kind=CHUNK, name=name, key=key, size=size)

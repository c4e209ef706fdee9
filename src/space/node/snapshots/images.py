"""The door to snapshots on a node: making them, uploading them, opening them again.

    plan      files of a machine  →  staging/ID/, and a list of what the object store must have
    upload    staging/ID/         →  the object store; then it is an image of the cache
    open      cache or store      →  images/MANIFEST/, kept while it is open

Each can be killed anywhere and is asked again.  What is in `staging/` survives that, what is in `incoming/` does not.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import structlog

from space.core.errors import FailedPrecondition, InvalidRequest, NotFound, RuntimeFailed
from space.core.ids import SnapshotId, is_id
from space.core.objects import chunk_key, manifest_key
from space.core.ports import ObjectStore
from space.core.snapshot import SnapshotOrder, SnapshotPlan, SnapshotRef, SnapshotResult
from space.host.failpoint import failpoint
from space.node.full_disk import full_disk_refuses
from space.node.snapshots import staging
from space.node.snapshots.cache import Cache
from space.node.snapshots.chunks import Run, by_chunk, gather, make_files, scatter, sources
from space.node.snapshots.image import FILES, INDEX, MANIFEST, Image, write_file, write_note
from space.node.snapshots.manifest import INDEX_PIECE, BadManifest, Manifest, decode_meta
from space.node.snapshots.pages import PAGE, Index
from space.node.snapshots.remote import Remote, open_manifest
from space.node.snapshots.stored import CHUNK, Damaged, seal, unseal
from space.node.snapshots.stored import MANIFEST as MANIFEST_KIND
from space.node.snapshots.threads import Threads, each

log = structlog.get_logger()

#: Chunks on their way at once: enough for a store that takes 20 ms to answer, and at most about 20 MiB of memory.
_AT_ONCE = 8


class Images:
    """All moments that this node has or is making.  One process a directory."""

    def __init__(self, directory: Path, objects: ObjectStore, *, cache_bytes: int) -> None:
        self._objects = objects
        self._staging = directory / "staging"
        self._incoming = directory / "incoming"
        self._results = directory / "results"
        shutil.rmtree(self._incoming, ignore_errors=True)
        for path in (directory, self._staging, self._incoming, self._results):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._threads = Threads()
        self._cache = Cache(directory / "images", cache_bytes, self._threads)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._distrusted: set[str] = set()  #: manifests of bases whose chunks the store has lost
        self._unwanted: set[SnapshotId] = set()

    async def planned(self, order: SnapshotOrder) -> SnapshotPlan | None:
        """Return the plan that was made of this snapshot, if one was."""
        async with self._lock(order.snapshot_id):
            return await self._planned(order)

    async def plan(self, order: SnapshotOrder, source: Path, meta: Mapping[str, Any]) -> SnapshotPlan:
        """Take over the directory `source` and find out what of it the store lacks.

        `source` is on the same file system, and gone afterwards.  If a plan exists already, it counts and `source` is
        removed; files of an attempt that did not end in a plan are replaced.  On failure nothing is left.

        Raises:
            InsufficientStorage: the node's disk is full.
            InvalidRequest: `source` holds something else than plain files.
            Unavailable: the base is not on this disk and the object store fails.
        """
        async with self._lock(order.snapshot_id):
            if (plan := await self._planned(order)) is not None:
                await self._threads.run(_remove, source)
                return plan
            directory = self._staging / order.snapshot_id
            try:
                with _disk():
                    await self._threads.run(_take_over, source, directory)
                    failpoint("plan.after_rename")
                    return await self._make_plan(order, directory, meta)
            except BaseException:
                await self._threads.run(_remove, directory)
                await self._threads.run(_remove, source)
                raise

    async def upload(self, order: SnapshotOrder) -> SnapshotResult:
        """Put what the store lacks, then the manifest; go on where an earlier call was interrupted.

        Raises:
            NotFound: there is no plan.
            FailedPrecondition: a chunk of the base is gone from the store; the next plan does without that base.
            Unavailable, InsufficientStorage: the object store fails.
        """
        async with self._lock(order.snapshot_id):
            if (result := self._result(order.snapshot_id)) is None:
                directory = self._staging / order.snapshot_id
                planned = staging.read_plan(directory)
                if planned is None:
                    raise NotFound(f"there is no checkpoint of snapshot {order.snapshot_id} on this node")
                with _disk():
                    manifest = await self._threads.run(_read_manifest, directory, planned.manifest, order.key)
                    sent = await self._put_all(order, directory, planned, manifest)
                result = SnapshotResult(
                    manifest=planned.manifest,
                    bytes_read=planned.bytes_read,
                    bytes_new=planned.bytes_new,
                    bytes_uploaded=sent,
                )
                failpoint("upload.after_manifest")
                with _disk():
                    write_file(self._results / f"{order.snapshot_id}.json", json.dumps(asdict(result)).encode())
                failpoint("upload.after_result")
            await self._keep(order.snapshot_id, result.manifest)
            return result

    @asynccontextmanager
    async def open(self, ref: SnapshotRef) -> AsyncIterator[Image]:
        """Bring a moment onto this disk, unless it is there, and keep it there for the body.

        Raises:
            FailedPrecondition: it is damaged; nothing of it was kept.
            InsufficientStorage: the node's disk is full.
            Unavailable: the object store fails.
        """
        async with self._lock(ref.manifest):
            if not self._cache.find(ref.manifest):
                await self._download(ref)
            pinning = self._cache.pinned(ref.manifest)
            path = pinning.__enter__()
        try:
            with _disk():
                meta = await self._threads.run(_read_meta, path, ref.manifest, ref.key)
            yield Image(path / FILES, meta)
        finally:
            pinning.__exit__(None, None, None)

    async def meta_of(self, ref: SnapshotRef) -> Mapping[str, Any]:
        """Return what was given to `plan`, without bringing the files here.  Raises as `open` does."""
        return (await self._manifest(ref)).meta

    async def discard(self, snapshot_id: SnapshotId) -> None:
        """Remove all that this disk has of a snapshot; an image that is open goes when it is closed."""
        self._unwanted.add(snapshot_id)  # an upload under way gives up
        try:
            async with self._lock(snapshot_id):
                await self._threads.run(_remove, self._staging / snapshot_id)
                (self._results / f"{snapshot_id}.json").unlink(missing_ok=True)
                self._cache.discard(snapshot_id)
        finally:
            self._unwanted.discard(snapshot_id)

    async def sweep(self, keep: Collection[SnapshotId]) -> None:
        """Discard every snapshot that is not in `keep`."""
        found = {SnapshotId(path.name) for path in self._staging.iterdir()}
        found |= {SnapshotId(path.stem) for path in self._results.iterdir() if is_id(path.stem, "snp")}
        for snapshot_id in (found | set(self._cache.snapshots())) - set(keep):
            await self.discard(snapshot_id)
        await self._cache.settle()

    async def aclose(self) -> None:
        """Wait for what goes on in threads."""
        await self._threads.aclose()

    # Planning

    async def _planned(self, order: SnapshotOrder) -> SnapshotPlan | None:
        if (result := self._result(order.snapshot_id)) is not None:
            ref = SnapshotRef(
                snapshot_id=order.snapshot_id, project_id=order.project_id, manifest=result.manifest, key=order.key
            )
            done = staging.Planned(
                manifest=result.manifest,
                first_new=0,
                base=None,
                bytes_read=result.bytes_read,
                bytes_new=result.bytes_new,
            )
            return staging.plan_of(done, await self._manifest(ref))
        directory = self._staging / order.snapshot_id
        if (planned := staging.read_plan(directory)) is None:
            return None
        return staging.plan_of(planned, await self._threads.run(_read_manifest, directory, planned.manifest, order.key))

    async def _make_plan(self, order: SnapshotOrder, directory: Path, meta: Mapping[str, Any]) -> SnapshotPlan:
        base, index = await self._base(order)
        files = directory / FILES
        try:
            manifest, unknown, pages = await self._threads.run(staging.draft, files, order.snapshot_id, meta, index)
        except ValueError as error:
            raise InvalidRequest(f"cannot keep this snapshot: {error}") from error
        failpoint("plan.after_hashing")
        first_new = len(manifest.chunks)
        runs = sources(manifest, first_new)
        names: list[bytes] = [b""] * len(runs)

        async def name(number: int) -> None:
            pages = manifest.chunk_pages[first_new + number]
            names[number] = await self._threads.run(_name, files, manifest, runs[number], pages)

        await each(range(len(runs)), name, at_once=_AT_ONCE)
        failpoint("plan.after_naming")
        planned, manifest = await self._threads.run(
            lambda: staging.finish(directory, manifest, names, pages, key=order.key, base=base, unknown=unknown)
        )
        return staging.plan_of(planned, manifest)

    async def _base(self, order: SnapshotOrder) -> tuple[str | None, Index]:
        """Return the base that may be referred to, and what it has; none if it is of no use."""
        ref = order.base
        if ref is None or ref.project_id != order.project_id or ref.manifest in self._distrusted:
            return None, Index()
        try:
            if self._cache.find(ref.manifest):
                with self._cache.pinned(ref.manifest) as path:
                    return ref.manifest, await self._threads.run(_read_index, path, ref)
            remote = self._remote(ref)
            manifest, _ = await remote.manifest(ref.manifest)
            index = await self._download_index(remote, manifest)
            return ref.manifest, await self._threads.run(staging.read_index, manifest, index)
        except (FailedPrecondition, BadManifest, Damaged) as error:
            log.warning("snapshot.base_unusable", snapshot=ref.snapshot_id, error=str(error))
            return None, Index()

    # Uploading

    async def _put_all(
        self, order: SnapshotOrder, directory: Path, planned: staging.Planned, manifest: Manifest
    ) -> int:
        """Put what is missing; return how many bytes that were."""
        runs = sources(manifest, planned.first_new)
        pieces = staging.index_pieces((directory / INDEX).read_bytes())
        sent = 0

        async def put(number: int) -> None:
            nonlocal sent
            if order.snapshot_id in self._unwanted:
                raise NotFound(f"the snapshot {order.snapshot_id} is not wanted any more")
            name = manifest.chunks[number] if number >= 0 else manifest.index[-1 - number]
            where = chunk_key(order.project_id, name)
            if await self._objects.head(where) is not None:
                return
            if 0 <= number < planned.first_new:
                if planned.base is not None:
                    self._distrusted.add(planned.base)
                raise FailedPrecondition(
                    f"the snapshot {order.snapshot_id} builds on a chunk that the object store has lost; try again"
                )
            if number < 0:
                stored = await self._threads.run(_sealed, pieces[-1 - number], name, order.key)
            else:
                stored = await self._threads.run(
                    _gather_and_seal, directory / FILES, manifest, runs[number - planned.first_new], number, order.key
                )
            failpoint("upload.before_chunk")
            await self._objects.put(where, stored)
            failpoint("upload.after_chunk")
            sent += len(stored)

        # New chunks first, which take longest; pieces of the index have the numbers below zero.
        numbers = [*range(planned.first_new, len(manifest.chunks)), *range(planned.first_new)]
        await each([*numbers, *range(-1, -1 - len(pieces), -1)], put, at_once=_AT_ONCE)
        failpoint("upload.after_chunks")
        stored = (directory / MANIFEST).read_bytes()
        await self._objects.put(manifest_key(order.project_id, planned.manifest), stored)
        return sent + len(stored)

    async def _keep(self, snapshot_id: SnapshotId, manifest: str) -> None:
        """Make an image of what was uploaded."""
        directory = self._staging / snapshot_id
        if directory.exists():
            with _disk():
                note = await self._threads.run(write_note, directory, snapshot_id)
            async with self._lock(manifest):
                self._cache.adopt(manifest, directory, note)
            failpoint("upload.after_rename")
            self._cache.make_room(0)

    def _result(self, snapshot_id: SnapshotId) -> SnapshotResult | None:
        try:
            return SnapshotResult(**json.loads((self._results / f"{snapshot_id}.json").read_bytes()))
        except FileNotFoundError:
            return None

    # Downloading

    async def _download(self, ref: SnapshotRef) -> None:
        remote = self._remote(ref)
        manifest, stored = await remote.manifest(ref.manifest)
        self._cache.make_room(manifest.disk_size)
        await self._cache.settle()
        directory = self._incoming / ref.manifest
        runs = by_chunk(manifest)

        async def fetch(number: int) -> None:
            content = await remote.chunk(manifest.chunks[number], manifest.chunk_pages[number] * PAGE)
            await self._threads.run(scatter, directory / FILES, manifest, runs[number], content)
            failpoint("open.after_chunk")

        try:
            with _disk():
                await self._threads.run(_remove, directory)
                directory.mkdir(mode=0o700)
                await self._threads.run(make_files, directory / FILES, manifest)
                await each(range(len(manifest.chunks)), fetch, at_once=_AT_ONCE)
                index = await self._download_index(remote, manifest)
                write_file(directory / INDEX, index)
                write_file(directory / MANIFEST, stored)
                note = await self._threads.run(write_note, directory, ref.snapshot_id)
            failpoint("open.before_rename")
            self._cache.adopt(ref.manifest, directory, note)
        except BaseException:
            await self._threads.run(_remove, directory)
            raise

    async def _download_index(self, remote: Remote, manifest: Manifest) -> bytes:
        pieces: list[bytes] = [b""] * len(manifest.index)

        async def fetch(number: int) -> None:
            size = min(INDEX_PIECE, manifest.index_size - number * INDEX_PIECE)
            pieces[number] = await remote.chunk(manifest.index[number], size)

        await each(range(len(pieces)), fetch, at_once=_AT_ONCE)
        return b"".join(pieces)

    async def _manifest(self, ref: SnapshotRef) -> Manifest:
        if self._cache.find(ref.manifest):
            with self._cache.pinned(ref.manifest) as path:
                return await self._threads.run(_read_manifest, path, ref.manifest, ref.key)
        manifest, _ = await self._remote(ref).manifest(ref.manifest)
        return manifest

    def _remote(self, ref: SnapshotRef) -> Remote:
        return Remote(self._objects, self._threads, ref.snapshot_id, ref.project_id, ref.key)

    def _lock(self, name: str) -> asyncio.Lock:
        """Return the one lock of a snapshot's id or of a manifest."""
        lock = self._locks.get(name)
        if lock is None:
            self._locks[name] = lock = asyncio.Lock()
        return lock


@contextmanager
def _disk() -> Iterator[None]:
    """Turn what this node's disk refuses in the body into errors of ours."""
    try:
        with full_disk_refuses("a snapshot"):
            yield
    except OSError as error:
        raise RuntimeFailed(f"the node's disk does not take or give a snapshot: {error.strerror}") from error


# In threads


def _take_over(source: Path, directory: Path) -> None:
    _remove(directory)
    directory.mkdir(mode=0o700)
    source.rename(directory / FILES)


def _remove(directory: Path) -> None:
    if directory.is_dir():
        shutil.rmtree(directory)


def _name(files: Path, manifest: Manifest, runs: Sequence[Run], pages: int) -> bytes:
    return sha256(gather(files, manifest, runs, pages)).digest()


def _gather_and_seal(files: Path, manifest: Manifest, runs: Sequence[Run], number: int, key: bytes) -> bytes:
    content = bytes(gather(files, manifest, runs, manifest.chunk_pages[number]))
    name = manifest.chunks[number]
    if sha256(content).digest() != name:
        raise FailedPrecondition(f"the snapshot {manifest.snapshot_id} changed after it was planned; make another one")
    return _sealed(content, name, key)


def _sealed(content: bytes, name: bytes, key: bytes) -> bytes:
    return seal(content, kind=CHUNK, name=name, key=key)


def _read_manifest(directory: Path, name: str, key: bytes) -> Manifest:
    try:
        return open_manifest((directory / MANIFEST).read_bytes(), name, key)
    except (Damaged, BadManifest) as error:
        raise FailedPrecondition(
            f"the manifest {name} on this node is damaged, or the key is another: {error}"
        ) from error


def _read_meta(directory: Path, name: str, key: bytes) -> Mapping[str, Any]:
    try:
        return decode_meta(
            unseal((directory / MANIFEST).read_bytes(), kind=MANIFEST_KIND, name=bytes.fromhex(name), key=key)
        )
    except Damaged as error:
        raise FailedPrecondition(
            f"the manifest {name} on this node is damaged, or the key is another: {error}"
        ) from error


def _read_index(directory: Path, ref: SnapshotRef) -> Index:
    manifest = _read_manifest(directory, ref.manifest, ref.key)
    return staging.read_index(manifest, (directory / INDEX).read_bytes())

"""The door to snapshots on a node: making them, uploading them, opening them again.

    plan      files of a machine  →  staging/ID/, and a list of what the object store must have
    upload    staging/ID/         →  the object store; then it is an image of the cache
    open      cache or store      →  images/MANIFEST/, kept while it is open

Each can be killed anywhere and is asked again.  What is in `staging/` survives that, what is in `incoming/` does not.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import structlog

from space.core.errors import FailedPrecondition, InvalidRequest, NotFound
from space.core.ids import SnapshotId, is_id
from space.core.ports import ObjectStore
from space.core.snapshot import SnapshotOrder, SnapshotPlan, SnapshotRef, SnapshotResult
from space.host.failpoint import failpoint
from space.node.snapshots import staging
from space.node.snapshots.cache import Cache
from space.node.snapshots.chunks import Run, gather, sources
from space.node.snapshots.disk import disk_failures, read_manifest, read_meta, read_own_index, remove_directory
from space.node.snapshots.download import download
from space.node.snapshots.image import FILES, Image, write_file, write_note
from space.node.snapshots.manifest import BadManifest, Manifest
from space.node.snapshots.pages import Index
from space.node.snapshots.remote import Remote
from space.node.snapshots.stored import name_of_content
from space.node.snapshots.threads import AT_ONCE, Threads, each
from space.node.snapshots.upload import BaseLost, Upload

log = structlog.get_logger()


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
                await self._threads.run(remove_directory, source)
                return plan
            directory = self._staging / order.snapshot_id
            try:
                with disk_failures():
                    await self._threads.run(_take_over, source, directory)
                    failpoint("plan.after_rename")
                    return await self._make_plan(order, directory, meta)
            except BaseException:
                await self._threads.run(remove_directory, directory)
                await self._threads.run(remove_directory, source)
                raise

    async def upload(self, order: SnapshotOrder) -> SnapshotResult:
        """Put what the store lacks, then the manifest; go on where an earlier call was interrupted.

        Raises:
            NotFound: there is no plan.
            FailedPrecondition: a chunk of the base is gone from the store; the next plan does without that base.
            Unavailable, InsufficientStorage: the object store fails.
        """
        async with self._lock(order.snapshot_id):
            with disk_failures():
                if (result := self._result(order.snapshot_id)) is None:
                    result = await self._put_all(order)
                    failpoint("upload.after_manifest")
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
            with disk_failures():
                meta = await self._threads.run(read_meta, path, ref.manifest, ref.key)
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
                await self._threads.run(remove_directory, self._staging / snapshot_id)
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
        return staging.plan_of(planned, await self._threads.run(read_manifest, directory, planned.manifest, order.key))

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
            names[number] = await self._threads.run(_name, files, manifest, runs[number], pages, order.key)

        await each(range(len(runs)), name, at_once=AT_ONCE)
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
                    return ref.manifest, await self._threads.run(read_own_index, path, ref.manifest, ref.key)
            remote = self._remote(ref)
            manifest, _ = await remote.manifest(ref.manifest)
            return ref.manifest, await self._threads.run(staging.read_index, manifest, await remote.index(manifest))
        except (FailedPrecondition, BadManifest) as error:
            log.warning("snapshot.base_unusable", snapshot=ref.snapshot_id, error=str(error))
            return None, Index()

    # Uploading

    async def _put_all(self, order: SnapshotOrder) -> SnapshotResult:
        directory = self._staging / order.snapshot_id
        planned = staging.read_plan(directory)
        if planned is None:
            raise NotFound(f"there is no checkpoint of snapshot {order.snapshot_id} on this node")
        upload = Upload(
            objects=self._objects,
            threads=self._threads,
            order=order,
            directory=directory,
            planned=planned,
            manifest=await self._threads.run(read_manifest, directory, planned.manifest, order.key),
            is_wanted=lambda: order.snapshot_id not in self._unwanted,
        )
        try:
            await upload.run()
        except BaseLost:
            if planned.base is not None:
                self._distrusted.add(planned.base)
            raise
        return SnapshotResult(
            manifest=planned.manifest,
            bytes_read=planned.bytes_read,
            bytes_new=planned.bytes_new,
            bytes_uploaded=upload.sent,
        )

    async def _keep(self, snapshot_id: SnapshotId, manifest: str) -> None:
        """Make an image of what was uploaded."""
        directory = self._staging / snapshot_id
        if staging.read_plan(directory) is None:  # gone already, or of before the host's last start
            await self._threads.run(remove_directory, directory)
            return
        note = await self._threads.run(write_note, directory, snapshot_id)
        async with self._lock(manifest):
            self._cache.adopt(manifest, directory, note)
        failpoint("upload.after_rename")
        self._cache.make_room(0)

    def _result(self, snapshot_id: SnapshotId) -> SnapshotResult | None:
        try:
            return SnapshotResult(**json.loads((self._results / f"{snapshot_id}.json").read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):  # results are not synced: the host's power may have failed
            return None

    # Downloading

    async def _download(self, ref: SnapshotRef) -> None:
        remote = self._remote(ref)
        manifest, stored = await remote.manifest(ref.manifest)
        self._cache.make_room(manifest.disk_size)
        await self._cache.settle()
        directory = self._incoming / ref.manifest
        try:
            with disk_failures():
                await self._threads.run(remove_directory, directory)
                note = await download(remote, manifest, stored, directory)
                failpoint("open.before_rename")
                self._cache.adopt(ref.manifest, directory, note)
        except BaseException:
            await self._threads.run(remove_directory, directory)
            raise

    async def _manifest(self, ref: SnapshotRef) -> Manifest:
        if self._cache.find(ref.manifest):
            with self._cache.pinned(ref.manifest) as path:
                return await self._threads.run(read_manifest, path, ref.manifest, ref.key)
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


def _take_over(source: Path, directory: Path) -> None:
    remove_directory(directory)
    directory.mkdir(mode=0o700)
    source.rename(directory / FILES)


def _name(files: Path, manifest: Manifest, runs: Sequence[Run], pages: int, key: bytes) -> bytes:
    return name_of_content(gather(files, manifest, runs, pages), key=key)

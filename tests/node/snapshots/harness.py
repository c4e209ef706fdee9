"""A node's images in a directory, an object store in memory, and machines that are only files."""

import hashlib
import itertools
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from space.core.ids import ProjectId, SnapshotId, make_id
from space.core.ports import ObjectStore
from space.core.snapshot import SnapshotOrder, SnapshotRef, SnapshotResult
from space.node.snapshots import Images
from space.testing.objects import FakeObjects

PAGE = 4096
PROJECT = ProjectId("prj" + "0" * 26)
OTHER_PROJECT = ProjectId("prj" + "0" * 25 + "4")
KEY = bytes(range(32))
META = {"token": "very-secret", "sessions": [["ses", 1]]}
_count = itertools.count(1)


def page(*words: object) -> bytes:
    """Return a page that is different for different words, and compresses."""
    seed = hashlib.sha256(repr(words).encode()).digest()
    return seed * (PAGE // len(seed))


def pages(numbers: Sequence[object]) -> bytes:
    return b"".join(page(number) for number in numbers)


def order(base: SnapshotRef | None = None, **changes: Any) -> SnapshotOrder:
    snapshot_id = SnapshotId(make_id("snp", unix_ms=next(_count), randomness=os.urandom(10)))
    made = SnapshotOrder(snapshot_id=snapshot_id, project_id=PROJECT, key=KEY, base=base)
    return replace(made, **changes)


def ref(order: SnapshotOrder, result: SnapshotResult) -> SnapshotRef:
    return SnapshotRef(
        snapshot_id=order.snapshot_id, project_id=order.project_id, manifest=result.manifest, key=order.key
    )


class Node:
    """One node's disk."""

    def __init__(self, directory: Path, objects: ObjectStore, *, cache_bytes: int = 1 << 30) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.objects = objects
        self.cache_bytes = cache_bytes
        self.images = self.restarted()

    def restarted(self) -> Images:
        """Return what a new process of the node would have."""
        self.images = Images(self.directory / "snapshots", self.objects, cache_bytes=self.cache_bytes)
        return self.images

    def source(self, files: Mapping[str, bytes]) -> Path:
        """Return a directory with these files, as a checkpoint leaves it."""
        source = self.directory / "checkpoint"
        shutil.rmtree(source, ignore_errors=True)
        for name, data in files.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(data)
        source.mkdir(exist_ok=True)
        return source

    async def save(
        self, files: Mapping[str, bytes], base: SnapshotRef | None = None, **changes: Any
    ) -> tuple[SnapshotRef, SnapshotResult]:
        """Plan and upload a moment."""
        made = order(base, **changes)
        await self.images.plan(made, self.source(files), META)
        result = await self.images.upload(made)
        return ref(made, result), result

    async def load(self, ref: SnapshotRef) -> dict[str, bytes]:
        """Return the files of a moment."""
        async with self.images.open(ref) as image:
            assert image.meta == META
            return contents(image.path)

    def left(self) -> set[str]:
        """Return what is on the disk, by the first parts of its path."""
        root = self.directory / "snapshots"
        found = {"/".join(path.relative_to(root).parts[:2]) for path in root.rglob("*")}
        return found - {"staging", "incoming", "results", "images"}


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def chunks(objects: FakeObjects) -> set[str]:
    return {key for key in objects.objects if "/chunks/" in key}

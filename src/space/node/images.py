"""Snapshots as the rest of the node needs them; `node/snapshots` makes them of chunks."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from space.core.ids import SnapshotId
from space.core.snapshot import SnapshotOrder, SnapshotPlan, SnapshotRef, SnapshotResult


class Image(Protocol):
    """A moment on this host's disk."""

    @property
    def path(self) -> Path: ...
    @property
    def meta(self) -> Mapping[str, Any]: ...


class Images(Protocol):
    """The moments that this host's disk has, and the way to the object store."""

    async def planned(self, order: SnapshotOrder) -> SnapshotPlan | None: ...
    async def plan(self, order: SnapshotOrder, source: Path, meta: Mapping[str, Any]) -> SnapshotPlan: ...
    async def upload(self, order: SnapshotOrder) -> SnapshotResult: ...
    def open(self, ref: SnapshotRef) -> AbstractAsyncContextManager[Image]: ...
    async def discard(self, snapshot_id: SnapshotId) -> None: ...

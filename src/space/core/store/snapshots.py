"""What the store does with snapshots, whose rows pin chunks."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from space.core.event import AuditEntry
from space.core.ids import ProjectId, SnapshotId
from space.core.snapshot import Purpose, Snapshot
from space.core.store.pages import Page


class SnapshotStore(Protocol):
    """The rows of snapshots, which pin chunks."""

    async def pin(self, snapshot_id: SnapshotId, chunks: bytes, *, now: datetime) -> None:
        """Record which chunks it needs: digests of `DIGEST_BYTES` each, one after the other.  Replaces earlier pins.

        Raises `Unavailable` while the project's chunks are being collected, and `StaleVersion` unless it is uploading.
        """
        ...

    async def find(self, snapshot_id: str) -> Snapshot | None: ...

    async def list(
        self, project_id: ProjectId, *, purpose: Purpose | None, sandbox_id: str | None, limit: int, cursor: str | None
    ) -> Page[Snapshot]:
        """Page through those that are ready, oldest first."""
        ...

    async def delete(self, snapshot_id: SnapshotId, project_id: ProjectId, *, audit: AuditEntry) -> None:
        """Let a named snapshot go.

        Raises `NotFound`, and `FailedPrecondition` while a sandbox has no later state than this.
        """
        ...

    async def unwanted(self, *, limit: int) -> Sequence[Snapshot]:
        """Mark as deleting, and return, what nobody needs: see `Purpose`; and what was never finished."""
        ...

    async def forget(self, snapshot_id: SnapshotId) -> None:
        """Remove a row that is deleting, with its pins."""
        ...

    async def begin_collection(self, project_id: ProjectId, *, until: datetime, now: datetime) -> frozenset[bytes]:
        """Hold off new pins of a project until then, and return every chunk that is pinned.

        Raises `Unavailable` while another one collects.
        """
        ...

    async def end_collection(self, project_id: ProjectId) -> None: ...

    async def projects(self) -> Sequence[ProjectId]:
        """Return the projects that have or had snapshots."""
        ...

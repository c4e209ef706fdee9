"""Snapshots: a moment of a sandbox that lasts, and how a node is asked to make one or to start from one.

A snapshot is a manifest in the object store: which chunks, in which order, are the machine's memory and runtime state
and the journals of its commands.  Its row pins the chunks before anything is uploaded, and holds the manifest's digest
once all of them are durable; only then can anybody start from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from space.core.ids import ProjectId, SandboxId, SnapshotId
from space.core.sandbox import Resources

MAX_NAMED = 1000  #: snapshots of a project that stay until somebody deletes them
DIGEST_BYTES = 32  #: of a chunk's name: a keyed hash of its content, which tells nothing to whoever lacks the key


class SnapshotState(StrEnum):
    """How far a snapshot is."""

    UPLOADING = "uploading"  #: chunks may be missing; its pins count
    READY = "ready"  #: published: everything is durable
    DELETING = "deleting"  #: nobody may start from it any more; waits for the collector


class Purpose(StrEnum):
    """Why a snapshot was made, which decides how long it is kept."""

    SUSPEND = "suspend"  #: while its sandbox's row names it
    FORK = "fork"  #: while a child that has no later one needs it
    NAMED = "named"  #: until somebody deletes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One row of the snapshots table."""

    id: SnapshotId
    project_id: ProjectId
    sandbox_id: SandboxId  #: of which it is a moment; may be deleted since
    generation: int
    purpose: Purpose
    name: str | None = None
    state: SnapshotState = SnapshotState.UPLOADING
    manifest: str | None = None  #: name of the manifest in hex, once ready
    runtime: str
    template: str
    template_digest: str
    resources: Resources
    bytes_read: int = 0  #: of memory, state and journals
    bytes_new: int = 0  #: of these, what its base did not have
    bytes_uploaded: int = 0  #: compressed
    created_by: str
    created_at: datetime  #: when it was asked for
    taken_at: datetime | None = None  #: the moment itself, by its node's clock; once ready
    ready_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRef:
    """A published snapshot as a node is told of it.  `key` opens it, is never written down and never logged."""

    snapshot_id: SnapshotId
    project_id: ProjectId
    manifest: str  #: name of the manifest in hex
    key: bytes = field(repr=False)  #: the project's, 32 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOrder:
    """Make this snapshot; its id makes asking twice harmless."""

    snapshot_id: SnapshotId
    project_id: ProjectId
    key: bytes = field(repr=False)
    base: SnapshotRef | None = None  #: an earlier moment, most of which is expected to be the same
    freeze: bool = False  #: leave the machine stopped, so that nothing happens to it after this moment
    quiet_since: datetime | None = None  #: only if nobody has used the machine since; else `InUse`


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlan:
    """A moment that is on the node's disk, and what the store must have before it is published."""

    chunks: Sequence[bytes]  #: names, each once
    bytes_read: int
    bytes_new: int
    taken_at: datetime | None = None  #: what had been journalled by then is part of it, and nothing later
    checkpoint_ms: int | None = field(default=None, compare=False)  #: to synced files; None when it is told of again


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotResult:
    """A moment that is in the object store."""

    manifest: str  #: name of the manifest in hex
    bytes_read: int
    bytes_new: int
    bytes_uploaded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What the last transaction of an operation writes of its snapshot."""

    snapshot_id: SnapshotId
    manifest: str
    bytes_read: int
    bytes_new: int
    bytes_uploaded: int
    taken_at: datetime | None = None

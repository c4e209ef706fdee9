"""An operation: a durable request to change a sandbox, driven until it ends."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from space.core.ids import OperationId, ProjectId, SandboxId, SnapshotId
from space.core.lifecycle import Kind


class Status(StrEnum):
    """How far an operation is."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One row of the operations table.

    `generation` fences it: its writes succeed only while the sandbox still has that generation and is held by
    it.  A succeeded operation is a promise; `error` is `{"code", "message"}` of the failure otherwise.
    """

    id: OperationId
    kind: Kind
    project_id: ProjectId
    sandbox_id: SandboxId
    generation: int
    status: Status
    step: str | None = None  #: the step that was finished last
    attempt: int = 0  #: how often it was claimed
    snapshot_id: SnapshotId | None = None  #: that it makes, or that it starts from (wake, recover, create)
    request: Mapping[str, Any] = field(default_factory=dict)  #: what was asked beyond the kind: `name`, `quiet_since` …
    progress: Mapping[str, Any] = field(default_factory=dict)  #: what finished steps found, shown to callers
    waits_for: OperationId | None = None  #: nobody may claim it before that one has ended: a child for its fork
    error: Mapping[str, Any] | None = None
    lease_owner: str | None = None
    lease_until: datetime | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None

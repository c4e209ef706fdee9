"""An operation: a durable request to change a sandbox, driven until it ends."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from space.core.ids import OperationId, ProjectId, SandboxId
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
    error: Mapping[str, Any] | None = None
    lease_owner: str | None = None
    lease_until: datetime | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None

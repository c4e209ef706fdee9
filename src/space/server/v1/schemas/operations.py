"""Operations on the wire."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from space.server.schemas import Query, Shown


class OperationQuery(Query):
    """How long to wait for an operation."""

    wait: Annotated[float, Field(ge=0, le=60, description="Seconds to wait for its end.")] = 0


class OperationError(Shown):
    """Why an operation failed."""

    code: str
    message: str
    retryable: bool = Field(description="Whether asking for the same again may succeed later.")


class OperationProgress(Shown):
    """How far an operation is; null where there is nothing to count, or not yet."""

    step_count: int
    steps_done: int
    bytes_read: int | None = Field(description="Of memory, runtime state and output, that make up the snapshot.")
    bytes_new: int | None = Field(description="Of these, what the last snapshot did not have.")
    bytes_uploaded: int | None = Field(description="To the object store, compressed.")
    checkpoint_ms: int | None = Field(description="In which the sandbox stood still, until its files were synced.")


class Operation(Shown):
    """A durable request to change a sandbox.  Succeeded is a promise."""

    id: str
    kind: Literal["create", "pause", "suspend", "wake", "fork", "snapshot", "recover", "delete"]
    sandbox_id: str
    snapshot_id: str | None = Field(description="The snapshot that it makes, or that it starts from.")
    status: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    step: str | None = Field(description="What it is doing, or what it failed at.")
    progress: OperationProgress
    error: OperationError | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

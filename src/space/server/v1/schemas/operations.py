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


class Operation(Shown):
    """A durable request to change a sandbox.  Succeeded is a promise."""

    id: str
    kind: Literal["create", "pause", "suspend", "wake", "fork", "snapshot", "recover", "delete"]
    sandbox_id: str
    status: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    step: str | None
    progress: float | None
    error: OperationError | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

"""Snapshots and forks on the wire."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from space.core.sandbox import AutoLifecycle as CoreAutoLifecycle
from space.server.schemas import WHOLE, Asked, Code, Query, Shown
from space.server.v1.schemas.operations import Operation
from space.server.v1.schemas.sandboxes import AutoLifecycle, Sandbox, ShownResources, TemplateName
from space.server.v1.schemas.shared import SANDBOX, Cursor, Env, Limit, Metadata

MAX_CHILDREN = 100


class ForkRequest(Asked):
    """Asks for children of a sandbox.  What is left out they take over from it."""

    count: Annotated[int, Field(ge=1, le=MAX_CHILDREN), WHOLE] = 1
    metadata: Annotated[Metadata | None, Field(description="Of each child, instead of the source's.")] = None
    env: Annotated[
        Env | None, Field(description="For commands that are started in the children, instead of the source's.")
    ] = None
    auto_lifecycle: AutoLifecycle | None = None

    @property
    def lifecycle(self) -> CoreAutoLifecycle | None:
        return self.auto_lifecycle.to_core() if self.auto_lifecycle is not None else None


class ChildError(Shown):
    """Why there is no such child."""

    code: Code
    message: str
    details: dict[str, Any]
    retryable: bool


class ForkedChild(Shown):
    """One child: a sandbox with the operation that starts it, or an error."""

    sandbox: Sandbox | None = None
    operation: Operation | None = None
    error: ChildError | None = None


class Forked(Shown):
    """The operation that saves the source, and what became of each child."""

    operation: Operation
    children: list[ForkedChild]


class SnapshotRequest(Asked):
    """Asks for a snapshot that stays until it is deleted."""

    name: Annotated[
        str | None,
        Field(
            pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$",
            description="For people; need not be unique, and is no template's name: create from the id.",
        ),
    ] = None


class Snapshot(Shown):
    """A moment of a sandbox that lasts: memory, processes, files and the output of its commands."""

    id: str
    name: str | None
    sandbox_id: str = Field(description="Of which it is a moment; that one may be deleted since.")
    state: Literal["uploading", "ready", "deleting"] = Field(
        description="Sandboxes start from a `ready` one; `uploading` is not durable yet."
    )
    purpose: Literal["suspend", "fork", "named"] = Field(
        description="`named` ones stay until they are deleted, others for as long as a sandbox needs them."
    )
    runtime: str
    template: TemplateName
    resources: ShownResources
    bytes_read: int
    bytes_new: int
    bytes_uploaded: int
    created_at: datetime
    ready_at: datetime | None


class SnapshotAccepted(Shown):
    """A snapshot, and the operation that makes it."""

    snapshot: Snapshot
    operation: Operation


class SnapshotPage(Shown):
    """A page of snapshots, oldest first."""

    items: list[Snapshot]
    next_cursor: str | None


class SnapshotListQuery(Query):
    """Chooses snapshots."""

    limit: Limit = 100
    cursor: Cursor = None
    sandbox: Annotated[
        str | None,
        Field(pattern=r"^sbx[0-9a-v]{26}$", description="Only those of this sandbox.", examples=[SANDBOX]),
    ] = None

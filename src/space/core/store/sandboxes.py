"""What the store does with sandboxes: their rows, and the admission of changes to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from space.core.account import IdempotencyRef
from space.core.errors import SpaceError
from space.core.event import AuditEntry
from space.core.ids import NodeId, OperationId, ProjectId, SandboxId
from space.core.lifecycle import Admission, Kind, State
from space.core.operation import Operation
from space.core.pool import PoolKey
from space.core.sandbox import AutoLifecycle, Resources, Sandbox
from space.core.snapshot import Snapshot
from space.core.store.operations import Lease
from space.core.store.pages import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxFilter:
    """Which sandboxes to list.  Without a `state`, deleted ones are left out."""

    state: str | None = None  #: as users see it: `creating`, `running` …
    template: str | None = None  #: as the caller named it when it was created, or its digest
    runtime: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    created_after: datetime | None = None  #: inclusive
    created_before: datetime | None = None  #: exclusive
    newest_first: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a node can be promised in all."""

    memory_mib: int
    machines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """All that the transaction of a create records."""

    sandbox: Sandbox  #: pending, generation 1, held by `operation`
    operation: Operation
    audit: AuditEntry
    idempotency: IdempotencyRef | None = None
    default_max_sandboxes: int | None = None  #: applies where the project itself sets none
    room: Room | None = None  #: of the sandbox's node; None: not checked
    pool: PoolKey | None = None  #: claim a parked machine of this kind, if there is one


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A request to change a sandbox, before it is admitted."""

    kind: Kind
    sandbox_id: SandboxId
    project_id: ProjectId
    operation_id: OperationId  #: of the operation that it starts, if it starts one
    lease: Lease
    at: datetime
    audit: AuditEntry
    idempotency: IdempotencyRef | None = None
    overdue: str | None = None  #: only if it still is for this reason, one of `SandboxStore.overdue`
    request: Mapping[str, Any] = field(default_factory=dict)  #: see `Operation.request`
    snapshot: Snapshot | None = None  #: that the operation will make, if it starts; recorded as uploading
    room: Room | None = None  #: of the sandbox's node, for what starts a machine; None: not checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A request to make children of a sandbox.

    Each child is a `Creation` whose operation is queued and waits for the fork's.  From a suspended sandbox they
    start from its own snapshot, else from `change.snapshot`.
    """

    change: Change
    children: Sequence[Creation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """How a `Change` was taken.  `operation` is new, joined, or a record of what was so already."""

    admission: Admission
    sandbox: Sandbox
    operation: Operation
    cancelled: OperationId | None = None  #: the operation that this one preempted


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """What became of a fork: of each child its sandbox, or why there is none."""

    changed: Changed
    children: Sequence[Sandbox | SpaceError]


class SandboxStore(Protocol):
    """The rows of sandboxes and the admission of changes to them."""

    async def create(self, creation: Creation) -> Sandbox:
        """Record sandbox, operation, event, audit entry and idempotency link together; claim a parked machine.

        Returns the sandbox as recorded: `pooled_id` is the machine that was claimed.

        Raises:
            NotFound: there is no such project, or no such snapshot to start from.
            LimitExceeded: a quota of the project is used up; `details.quota` names it.
            CapacityUnavailable: the node's room is promised to others.
        """
        ...

    async def change(self, change: Change) -> Changed:
        """Admit by `core.lifecycle.admit`; a delete cancels the operation that holds the sandbox.

        Raises:
            NotFound: there is no such sandbox in the project.
            OperationInProgress, InvalidTransition: see `admit`.
            FailedPrecondition: it has no durable state to wake, recover or fork from.
            LimitExceeded, CapacityUnavailable: another machine would be too much for the project, or the node.
            StaleVersion: it is no longer `overdue`.
        """
        ...

    async def fork(self, fork: Fork) -> Forked:
        """Admit a fork and record its children, each of them or none: a quota that is used up costs the rest.

        Raises as `change` does, and what was wrong with the first child if there would be none.
        """
        ...

    async def quota_left(
        self, project_id: ProjectId, resources: Resources, *, at: datetime, default_max_sandboxes: int | None
    ) -> int:
        """Return how many more such sandboxes the project's quotas allow at present; raises `NotFound`."""
        ...

    async def find(self, sandbox_id: str) -> Sandbox | None: ...

    async def list(
        self, project_id: ProjectId, where: SandboxFilter, *, limit: int, cursor: str | None
    ) -> Page[Sandbox]:
        """Page in the order of ids, fewer than `limit` if they are large.

        Raises `InvalidRequest` for a cursor that this filter did not give out.
        """
        ...

    async def update(
        self,
        sandbox_id: SandboxId,
        project_id: ProjectId,
        *,
        at: datetime,
        audit: AuditEntry,
        metadata: Mapping[str, str] | None = None,
        auto_lifecycle: AutoLifecycle | None = None,
        extend_seconds: int | None = None,
        idempotency: IdempotencyRef | None = None,
    ) -> Sandbox:
        """Replace what is given; `extend_seconds` moves `expires_at` to that long after `at`, never back.

        Raises `NotFound`, `InvalidTransition` for a deleted sandbox.
        """
        ...

    async def touch(self, used: Mapping[SandboxId, datetime]) -> None:
        """Record activity: raises `last_active_at`, never lowers it."""
        ...

    async def observe_exit(
        self, sandbox_id: SandboxId, generation: int, *, reason: str, at: datetime, data: Mapping[str, Any]
    ) -> bool:
        """Record that this machine ended unasked: the sandbox fails and its processes are lost.

        Returns whether the row changed; it does not for another generation or a state without a machine.
        """
        ...

    async def desired(self, node_id: NodeId) -> Mapping[SandboxId, tuple[int, State, Kind | None]]:
        """Return generation, resting state and holder of each sandbox on this node that is not yet deleted."""
        ...

    async def overdue(self, now: datetime, *, limit: int) -> Sequence[tuple[SandboxId, ProjectId, str]]:
        """Find what should change now, with the reason: `expired`, or `idle` where `on_idle` is not none.

        A sandbox that is paused is idle where `on_idle` is suspend or delete; a suspended one where it is delete.
        """
        ...

    async def purge(self, deleted_before: datetime, *, limit: int) -> int:
        """Forget deleted sandboxes with their operations and events; returns how many."""
        ...

"""What the control plane asks of the store: everything that lasts.

Each method is one whole transaction: it returns after the commit, or raises and has changed nothing.  No
transaction spans an `await` of the caller.  A write that belongs to an operation is *fenced*: it succeeds only while
the caller still holds the operation's lease and the sandbox still has the operation's generation; otherwise it
raises `StaleVersion` and the caller stops.  Times are passed in, so that tests need not wait.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from space.core.account import IdempotencyRef, Project, Role, Token, User
from space.core.command import Process, SessionToken
from space.core.errors import SpaceError
from space.core.event import AuditEntry, Event
from space.core.ids import (
    NodeId,
    OperationId,
    PooledId,
    ProcessId,
    ProjectId,
    SandboxId,
    SessionId,
    SnapshotId,
    TokenId,
)
from space.core.lifecycle import Admission, Kind, State
from space.core.operation import Operation, Status
from space.core.pool import Pool, PooledMachine, PoolKey
from space.core.ports import SessionStatus
from space.core.sandbox import AutoLifecycle, Sandbox
from space.core.snapshot import Published, Purpose, Snapshot

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """Part of a list; `next_cursor` is opaque, and None at the end."""

    items: Sequence[T]
    next_cursor: str | None


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
class Lease:
    """Who drives an operation, and until when nobody else may."""

    owner: str
    until: datetime


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an operation ended.  The resting state follows from `core.lifecycle.RULES`."""

    status: Status
    at: datetime
    error: Mapping[str, Any] | None = None  #: `{"code", "message"}` of a failure
    reason: str | None = None  #: of the sandbox, if it ends up failed
    published: Published | None = None  #: what its snapshot turned out to be: made ready in the same transaction


class SandboxStore(Protocol):
    """The rows of sandboxes and the admission of changes to them."""

    async def create(self, creation: Creation) -> Sandbox:
        """Record sandbox, operation, event, audit entry and idempotency link together; claim a parked machine.

        Returns the sandbox as recorded: `pooled_id` is the machine that was claimed.

        Raises:
            NotFound: there is no such project.
            LimitExceeded: a quota of the project is used up; `details.quota` names it.
            CapacityUnavailable: the node's room is promised to others.
        """
        ...

    async def change(self, change: Change) -> Changed:
        """Admit by `core.lifecycle.admit`; a delete cancels the operation that holds the sandbox.

        Raises `NotFound`, what `admit` raises, and `StaleVersion` for what is no longer `overdue`.
        """
        ...

    async def fork(self, fork: Fork) -> Forked:
        """Admit a fork and record its children, each of them or none: a quota that is used up costs the rest.

        Raises as `change` does, and what was wrong with the first child if there would be none.
        """
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


class OperationStore(Protocol):
    """The rows of operations.  Writes after a claim are fenced by the lease's owner and the attempt."""

    async def find(self, operation_id: str) -> Operation | None: ...

    async def claim(self, lease: Lease, *, now: datetime, limit: int) -> Sequence[Operation]:
        """Take over operations that nobody drives: queued, or with a lease that ran out."""
        ...

    async def renew(self, operation: Operation, lease: Lease) -> None: ...

    async def finish_step(
        self, operation: Operation, step: str, *, lease: Lease, progress: Mapping[str, Any] | None = None
    ) -> Operation:
        """Record that `step` is done, and renew; `progress` is added to what is there."""
        ...

    async def postpone(self, operation: Operation, *, until: datetime, error: Mapping[str, Any]) -> None:
        """Give the lease back after a failed attempt; nobody may claim it before `until`."""
        ...

    async def finish(self, operation: Operation, outcome: Outcome) -> tuple[Sandbox, Operation]:
        """End it: its row, its sandbox's state and the event together.

        A success is recorded as a failure if the sandbox left the states in which the operation may start, e.g.
        because its machine exited meanwhile.  A suspend, snapshot or fork that succeeds makes its snapshot ready and,
        but for a fork, the sandbox's; one that fails leaves it to the collector.  Operations that wait for this one
        may be claimed, or fail with it.
        """
        ...


class SnapshotStore(Protocol):
    """The rows of snapshots, which pin chunks."""

    async def pin(self, snapshot_id: SnapshotId, chunks: bytes) -> None:
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


class PoolStore(Protocol):
    """Pools and the rows of their machines."""

    async def set(self, pool: Pool, audit: AuditEntry) -> Pool:
        """Make a pool, or change the size of the one with the same template, runtime and resources."""
        ...

    async def delete(self, template: str, *, audit: AuditEntry) -> int:
        """Remove the pools of a template; their machines are retired.  Returns how many there were."""
        ...

    async def list(self) -> Sequence[Pool]: ...

    async def add(self, machine: PooledMachine) -> None: ...

    async def parked(self, pooled_id: PooledId, *, at: datetime) -> bool:
        """A starting machine waits from now on; False if it was retired meanwhile."""
        ...

    async def retire(self, pooled_id: PooledId) -> bool:
        """Take it out of the pool unless it was claimed; returns whether it is retired."""
        ...

    async def machines(self, node_id: NodeId) -> Sequence[PooledMachine]: ...

    async def forget(self, pooled_id: PooledId) -> None:
        """Remove a row; succeeds if there is none."""
        ...


class EventStore(Protocol):
    """The timelines of sandboxes."""

    async def append(self, event: Event) -> Event:
        """Add an event that belongs to no other change."""
        ...

    async def read(self, sandbox_id: str, *, after: int, limit: int) -> Sequence[Event]:
        """Return the events with a `seq` above `after`, oldest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NewProcess:
    """All that the transaction of a command's creation records."""

    process: Process  #: its generation is filled in by the store
    token: SessionToken | None
    audit: AuditEntry
    idempotency: IdempotencyRef | None = None
    max_unfinished: int = 1000  #: processes of one sandbox that may be created or running


class ProcessStore(Protocol):
    """The rows of processes, sessions and session tokens."""

    async def create(self, new: NewProcess) -> Process:
        """Record process, token, audit entry and idempotency link together, for the sandbox's present machine.

        Raises:
            NotFound: no such sandbox in the process's project.
            OperationInProgress, FailedPrecondition: it does not run (`core.lifecycle.require_running`).
            LimitExceeded: too many are unfinished.
        """
        ...

    async def find(self, process_id: str) -> Process | None: ...

    async def find_session(self, session_id: str) -> Process | None: ...

    async def list(
        self, sandbox_id: SandboxId, *, ended_after: datetime, limit: int, cursor: str | None
    ) -> Page[Process]:
        """Page in the order of ids, without those that ended longer ago; fewer than `limit` if they are large."""
        ...

    async def unfinished(self, *, after: tuple[str, str] = ("", ""), limit: int) -> Sequence[Process]:
        """Return what is created or running in any sandbox, after (sandbox id, process id); some, if there are any."""
        ...

    async def request_start(self, session_id: SessionId, *, at: datetime) -> tuple[Process, int | None]:
        """Write down that a `created` process is about to be started, and return the machine's generation.

        The generation is None if there is nothing to start.  Raises as `create` does.
        """
        ...

    async def end_unstarted(
        self,
        process_id: ProcessId,
        *,
        reason: str,
        at: datetime,
        audit: AuditEntry | None,
        even_if_requested: bool = False,
    ) -> bool:
        """End a `created` process without starting it; returns whether it was one.

        One whose start was requested is ended only with `even_if_requested`, by a caller who knows that no start
        is under way and that no node has it.
        """
        ...

    async def observe(self, *statuses: SessionStatus) -> None:
        """Take over what journals say.  A state never goes back, but a seen exit replaces a presumed loss."""
        ...

    async def lose(self, sandbox_id: SandboxId, generation: int, *, reason: str, at: datetime) -> None:
        """Mark what ran on machines up to `generation` as lost."""
        ...

    async def add_token(self, token: SessionToken, audit: AuditEntry | None) -> None: ...

    async def find_token(self, token_hash: bytes) -> SessionToken | None: ...

    async def expired(self, ended_before: datetime, *, limit: int) -> Sequence[SessionId]:
        """Find sessions of processes that ended, or were recorded and never started, before then."""
        ...

    async def never_arrived(self, requested_before: datetime, *, limit: int) -> Sequence[SessionId]:
        """Find sessions whose start was requested before then, of which no node has told anything since."""
        ...

    async def purge(self, sessions: Sequence[SessionId]) -> None:
        """Forget these processes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStart:
    """What must exist before anybody can call; each part is recorded only if there is none yet."""

    project: Project
    admin: User
    admin_password_hash: str
    cli_token: Token | None  #: None: the one that exists stays
    cli_token_hash: bytes | None
    audit: AuditEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What was there, or has been made."""

    project: Project
    admin_email: str
    made_admin: bool
    made_cli_token: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UserChange:
    """A change to a user; None leaves a field as it is."""

    role: Role | None = None
    is_disabled: bool | None = None
    password_hash: str | None = None


class AccountStore(Protocol):
    """Users, projects and tokens."""

    async def start(self, first: FirstStart) -> Started: ...

    async def add_user(
        self, user: User, password_hash: str, audit: AuditEntry, *, idempotency: IdempotencyRef | None = None
    ) -> None:
        """Raises `AlreadyExists` if the address is taken, `NotFound` for an unknown project."""
        ...

    async def find_user(self, user_id: str) -> User | None: ...

    async def find_login(self, email: str) -> tuple[User, str] | None:
        """Return a user with the hash of the password."""
        ...

    async def list_users(self, *, limit: int, cursor: str | None) -> Page[User]: ...

    async def change_user(
        self,
        user_id: str,
        change: UserChange,
        *,
        at: datetime,
        audit: AuditEntry,
        idempotency: IdempotencyRef | None = None,
    ) -> tuple[User, Sequence[TokenId]]:
        """Change a user and revoke what that takes away; returns the tokens that ended.

        Disabling ends all of the user's tokens; a new role or password ends the logins, and a lesser role the
        tokens that hold more.

        Raises:
            NotFound: no such user.
            FailedPrecondition: no admin would be left.
        """
        ...

    async def add_login(self, token: Token, token_hash: bytes, password_hash: str, audit: AuditEntry) -> None:
        """Record a login unless the user lost it meanwhile (`Unauthenticated`): disabled, demoted, another password."""
        ...

    async def add_token(
        self, token: Token, token_hash: bytes, *, maker: TokenId, audit: AuditEntry, idempotency: IdempotencyRef | None
    ) -> None:
        """Record a token unless `maker`, the token it was asked for with, has ended meanwhile (`Unauthenticated`).

        Raises `NotFound` for an unknown project.
        """
        ...

    async def find_token(self, token_id: str) -> Token | None: ...

    async def find_secret(self, token_hash: bytes) -> Token | None:
        """Return the token, whether or not it is still good; None also if its user is disabled."""
        ...

    async def list_tokens(
        self, *, user_id: str | None, maker: str | None, limit: int, cursor: str | None
    ) -> Page[Token]:
        """Page all but logins in the order of ids; of one user, or made by one principal, where given."""
        ...

    async def revoke_token(self, token_id: TokenId, *, at: datetime, audit: AuditEntry) -> bool: ...

    async def used(self, tokens: Mapping[TokenId, datetime]) -> None:
        """Raise `last_used_at`, never lower it."""
        ...

    async def add_project(
        self, project: Project, audit: AuditEntry, *, idempotency: IdempotencyRef | None = None
    ) -> None:
        """Raises `AlreadyExists` if the name is taken."""
        ...

    async def find_project(self, project_id: str) -> Project | None: ...

    async def project_key(self, project_id: ProjectId, *, otherwise: bytes | None = None) -> bytes | None:
        """Return the project's sealed key; if it has none, `otherwise` becomes it.  Raises `NotFound`."""
        ...

    async def list_projects(self, *, limit: int, cursor: str | None) -> Page[Project]: ...

    async def change_project(self, project_id: str, changes: Mapping[str, Any], audit: AuditEntry) -> Project:
        """Change the given fields of `Project`.  Raises `NotFound`, `AlreadyExists`."""
        ...

    async def purge(self, now: datetime) -> None:
        """Forget session tokens and logins that have expired."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which audit entries to list; what is None does not matter."""

    project_id: str | None = None
    principal: str | None = None
    action: str | None = None
    target: str | None = None
    outcome: str | None = None  #: `ok`, an error code, or `refused` for any but `ok`
    after: datetime | None = None  #: inclusive
    before: datetime | None = None  #: exclusive


class AuditStore(Protocol):
    """The audit log."""

    async def append(self, *entries: AuditEntry) -> None: ...

    async def list(self, where: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditEntry]:
        """Page newest first; `InvalidRequest` for a cursor that is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """What is known of an idempotency key whose request did something."""

    request_hash: bytes
    target_id: str | None  #: what the change made
    status: int | None  #: None: the server died before it answered
    body: bytes | None  #: None: not kept
    headers: Mapping[str, str]


class IdempotencyStore(Protocol):
    """The keys of requests and the answers that they got."""

    async def find(self, ref: IdempotencyRef, *, now: datetime) -> KeptAnswer | None:
        """Return what became of the key, unless it has expired.

        A store that several servers share must reserve the key here for one of them.
        """
        ...

    async def keep(self, ref: IdempotencyRef, answer: KeptAnswer, *, at: datetime, expires_at: datetime) -> None:
        """Record an answer; the target that the change's transaction linked stays."""
        ...

    async def purge(self, now: datetime) -> None:
        """Forget keys that have expired."""
        ...


class Watch(Protocol):
    """Waits for commits that touch one topic."""

    async def wait(self, seconds: float) -> None:
        """Return after a commit since the watch began or since `wait` last returned, or when the time is over."""
        ...


class Store(Protocol):
    """The one door to what lasts."""

    @property
    def sandboxes(self) -> SandboxStore: ...

    @property
    def operations(self) -> OperationStore: ...

    @property
    def snapshots(self) -> SnapshotStore: ...

    @property
    def pools(self) -> PoolStore: ...

    @property
    def events(self) -> EventStore: ...

    @property
    def processes(self) -> ProcessStore: ...

    @property
    def accounts(self) -> AccountStore: ...

    @property
    def audit(self) -> AuditStore: ...

    @property
    def idempotency(self) -> IdempotencyStore: ...

    def watch(self, topic: str) -> AbstractContextManager[Watch]:
        """Watch a topic, which is an id.  Begin before reading the row, so that no change is missed."""
        ...

    async def aclose(self) -> None:
        """Finish the writes under way and close; later calls raise `Unavailable`."""
        ...

"""The sandbox: a durable row, and what its creator asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from space.core.ids import NodeId, OperationId, PooledId, ProjectId, SandboxId, SnapshotId
from space.core.lifecycle import Kind, State, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a machine may use; each is a hard limit inside the guest."""

    vcpus: int = 1
    memory_mib: int = 512
    disk_mib: int = 2048


class OnIdle(StrEnum):
    """What happens to a sandbox that nobody uses."""

    PAUSE = "pause"
    SUSPEND = "suspend"
    DELETE = "delete"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoLifecycle:
    """Changes that happen by themselves; durations in seconds."""

    idle_seconds: int = 21_600
    on_idle: OnIdle = OnIdle.SUSPEND
    max_lifetime_seconds: int | None = None
    wake_on_request: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """A validated request for a sandbox.  `template` is `name`, `name:tag` or a `sha256:` digest."""

    template: str
    runtime: str | None = None  #: None: the node's best
    resources: Resources = Resources()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)
    auto_lifecycle: AutoLifecycle = AutoLifecycle()
    secure_ports: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A long-lived computer as the store knows it."""

    id: SandboxId
    project_id: ProjectId
    template: str  #: as the caller named it
    template_digest: str  #: what it resolved to when it was admitted
    runtime: str
    resources: Resources
    env: Mapping[str, str] = field(repr=False)
    metadata: Mapping[str, str]
    auto_lifecycle: AutoLifecycle
    secure_ports: bool
    state: State  #: resting state; see `shown_state`
    version: int  #: optimistic lock, raised by each write
    generation: int  #: raised by each admitted start or delete of a machine
    held_by: OperationId | None
    held_kind: Kind | None
    node_id: NodeId | None
    reason: str | None  #: why it failed or came down unasked
    restorable: bool  #: `snapshot_id` is a durable moment, for `recover`
    snapshot_id: SnapshotId | None = None  #: the last durable moment: of the last suspend, snapshot or fork
    pooled_id: PooledId | None = None  #: the warm machine that its create claimed
    created_by: str  #: principal
    created_at: datetime
    started_at: datetime | None
    last_active_at: datetime
    expires_at: datetime | None
    deleted_at: datetime | None

    @property
    def shown_state(self) -> str:
        return shown(self.state, self.held_kind)

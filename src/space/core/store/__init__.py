"""What the control plane asks of the store: everything that lasts.

Each method is one whole transaction: it returns after the commit, or raises and has changed nothing.  No
transaction spans an `await` of the caller.  A write that belongs to an operation is *fenced*: it succeeds only while
the caller still holds the operation's lease and the sandbox still has the operation's generation; otherwise it
raises `StaleVersion` and the caller stops.  Times are passed in, so that tests need not wait.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from space.core.store.accounts import AccountStore, FirstStart, Started, UserChange
from space.core.store.audit import AuditFilter, AuditStore
from space.core.store.events import EventStore
from space.core.store.idempotency import IdempotencyStore, KeptAnswer
from space.core.store.operations import Lease, OperationStore, Outcome
from space.core.store.pages import Page
from space.core.store.pools import PoolStore
from space.core.store.processes import NewProcess, ProcessStore
from space.core.store.sandboxes import Change, Changed, Creation, Fork, Forked, Room, SandboxFilter, SandboxStore
from space.core.store.snapshots import SnapshotStore

__all__ = [
    "AccountStore",
    "AuditFilter",
    "AuditStore",
    "Change",
    "Changed",
    "Creation",
    "EventStore",
    "FirstStart",
    "Fork",
    "Forked",
    "IdempotencyStore",
    "KeptAnswer",
    "Lease",
    "NewProcess",
    "OperationStore",
    "Outcome",
    "Page",
    "PoolStore",
    "ProcessStore",
    "Room",
    "SandboxFilter",
    "SandboxStore",
    "SnapshotStore",
    "Started",
    "Store",
    "UserChange",
    "Watch",
]


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

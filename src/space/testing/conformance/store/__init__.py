"""What every store must do; a store's tests subclass `StoreConformance` and give it a `store` fixture.

The aggregates of accounts, processes, audit and idempotency have suites of their own.
"""

from space.testing.conformance.store.events import EventConformance
from space.testing.conformance.store.forks import ForkConformance
from space.testing.conformance.store.handover import HandoverConformance
from space.testing.conformance.store.lifecycles import LifecycleConformance
from space.testing.conformance.store.lists import ListConformance
from space.testing.conformance.store.made import add_projects
from space.testing.conformance.store.observations import ObservationConformance
from space.testing.conformance.store.operations import OperationConformance
from space.testing.conformance.store.pools import PoolConformance
from space.testing.conformance.store.sandboxes import SandboxConformance
from space.testing.conformance.store.snapshots import SnapshotConformance

__all__ = ["StoreConformance", "add_projects"]


class StoreConformance(
    EventConformance,
    ForkConformance,
    HandoverConformance,
    LifecycleConformance,
    ListConformance,
    ObservationConformance,
    OperationConformance,
    PoolConformance,
    SandboxConformance,
    SnapshotConformance,
):
    """All of it."""

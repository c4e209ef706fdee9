"""Warm pools: machines that are started ahead and wait for a sandbox.

A parked machine is a row.  A create claims one by compare-and-set in the transaction that records the sandbox; the
node then binds it.  A machine that was bound, or whose binding failed, never returns to the pool.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from space.core.ids import NodeId, PooledId, SandboxId
from space.core.sandbox import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolKey:
    """What a machine must be to serve a create."""

    template_digest: str
    runtime: str
    resources: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """How many machines of a kind to keep ready.  One template and size has one pool."""

    template: str  #: as the operator named it; followed when its digest changes
    runtime: str
    resources: Resources
    min: int = 0  #: always ready
    max: int = 0  #: ready at most, when demand is high; `min` where it is lower
    created_at: datetime


class PooledState(StrEnum):
    """Where a pooled machine is in its life."""

    STARTING = "starting"  #: ordered from its node
    PARKED = "parked"  #: waits; a create may claim it
    BOUND = "bound"  #: claimed for `sandbox_id`
    RETIRED = "retired"  #: to be removed by its node, then forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledMachine:
    """One row of the machines table."""

    id: PooledId
    node_id: NodeId
    node_epoch: int
    key: PoolKey
    state: PooledState
    sandbox_id: SandboxId | None = None
    generation: int | None = None
    created_at: datetime
    parked_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOrder:
    """Start this machine and keep it for whoever comes."""

    id: PooledId
    key: PoolKey

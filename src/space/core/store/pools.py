"""What the store does with warm pools and their machines."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from space.core.event import AuditEntry
from space.core.ids import NodeId, PooledId
from space.core.pool import Pool, PooledMachine


class PoolStore(Protocol):
    """Pools and the rows of their machines."""

    async def set(self, pool: Pool, audit: AuditEntry) -> Pool:
        """Make a pool, or change the size of the one with the same template, runtime and resources."""
        ...

    async def delete(self, template: str, *, audit: AuditEntry) -> int:
        """Remove the pools of a template; returns how many there were.  Their keeper retires what they leave."""
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

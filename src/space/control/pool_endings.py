"""Ending the machines of pools: those that are not wanted, and those that a create or a crash left behind."""

import asyncio
from collections.abc import Collection

import structlog

from space.core.errors import SpaceError
from space.core.ids import PooledId
from space.core.lifecycle import Kind
from space.core.node import NodeFacts
from space.core.pool import PooledMachine, PooledState, PoolKey
from space.core.ports import NodeClient
from space.core.store import Store
from space.host.failpoint import failpoint

log = structlog.get_logger(__name__)

_REMOVE_SECONDS = 30.0  # for the end of one machine; what takes longer is tried again in the next round


class PoolEndings:
    """Takes machines out of pools; only what nobody has claimed."""

    def __init__(self, store: Store, node: NodeClient) -> None:
        self._store = store
        self._node = node

    async def keeps(
        self, row: PooledMachine, wanted: Collection[PoolKey], facts: NodeFacts, running: Collection[PooledId]
    ) -> bool:
        """Whether this is one of a pool's machines; what is none is brought to its end."""
        match row.state:
            case PooledState.BOUND:
                await self._look_after_bound(row, running)
                return False
            case PooledState.RETIRED:
                await self._remove(row)
                return False
            case PooledState.PARKED:
                is_good = row.id in running
            case PooledState.STARTING:
                is_good = True
        if is_good and row.key in wanted and row.node_epoch == facts.epoch:
            return True
        await self.retire(row, "gone" if not is_good else "not wanted")
        return False

    async def retire(self, row: PooledMachine, why: str) -> bool:
        """Take a machine out and end it, unless a create was quicker; returns whether it was taken out."""
        if not await self._store.pools.retire(row.id):
            return False
        log.info("pool.machine_retired", machine=row.id, why=why)
        failpoint("pool.after_retire")
        await self._remove(row)
        return True

    async def stranger(self, pooled_id: PooledId) -> None:
        """End a machine that no row speaks of."""
        log.info("pool.stranger_retired", machine=pooled_id)
        async with asyncio.timeout(_REMOVE_SECONDS):
            await self._node.retire(pooled_id)

    async def _look_after_bound(self, row: PooledMachine, running: Collection[PooledId]) -> None:
        """Forget a claim that was used; end the machine if its sandbox went away before that."""
        if row.id in running:
            sandbox = None if row.sandbox_id is None else await self._store.sandboxes.find(row.sandbox_id)
            if sandbox is not None and sandbox.held_kind is Kind.CREATE:
                return
        await self._remove(row)

    async def _remove(self, row: PooledMachine) -> None:
        """End a machine that nobody can claim any more, and forget it."""
        try:
            async with asyncio.timeout(_REMOVE_SECONDS):
                await self._node.retire(row.id)
        except (SpaceError, TimeoutError) as error:
            log.warning("pool.not_removed", machine=row.id, error=repr(error))
            return  # its row says so: the next round tries again
        failpoint("pool.after_removal")
        await self._store.pools.forget(row.id)

"""Snapshots that nobody needs: their rows, what nodes have of them, and then the objects that no row pins.

A snapshot's row pins its chunks and its manifest before the node looks which of them exist.  Whoever deletes holds off
new pins meanwhile: so what is deleted is pinned by nobody and will not be found to exist by anybody who pins it next.
"""

from datetime import timedelta

import structlog

from space.core.errors import SpaceError
from space.core.ids import ProjectId
from space.core.objects import name_of, project_prefix
from space.core.ports import Clock, NodeClient, ObjectStore
from space.core.store import Store

log = structlog.get_logger(__name__)

GRACE = timedelta(hours=24)  #: what is younger stays, whatever the rows say
#: How long new pins are held off at most.  An object store gives up on a request after half of that, so nothing is
#: still being deleted when they are let in again.
_LEASE = timedelta(seconds=120)
_EVERY_SECONDS = 300.0
_ROWS = 100
_OBJECTS = 500  # deleted under one lease: well under a second, during which suspends wait


class Collector:
    """Removes.  Every step may be done again, and each leaves only what the next round finds."""

    def __init__(self, store: Store, node: NodeClient, objects: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._node = node
        self._objects = objects
        self._clock = clock

    async def run(self) -> None:
        """Collect every few minutes, until cancelled."""
        while True:
            try:
                await self.collect()
            except SpaceError as error:
                log.warning("snapshots.not_collected", error=error.message)
            await self._clock.sleep(_EVERY_SECONDS)

    async def collect(self) -> int:
        """Do a round; returns how many objects were deleted.  One project's failure does not keep others waiting."""
        await self.forget()
        count = 0
        for project_id in await self._store.snapshots.projects():
            try:
                count += await self._collect(project_id)
            except SpaceError as error:
                log.warning("snapshots.not_collected", project=project_id, error=error.message)
        if count:
            log.info("snapshots.collected", objects=count)
        return count

    async def forget(self) -> None:
        """Remove what nobody needs from the nodes, and then its row, which is what tells of the rest."""
        while rows := await self._store.snapshots.unwanted(limit=_ROWS):
            for snapshot in rows:
                await self._node.discard(snapshot.id)
                await self._store.snapshots.forget(snapshot.id)

    async def _collect(self, project_id: ProjectId) -> int:
        pinned = await self._begin(project_id)
        await self._store.snapshots.end_collection(project_id)
        oldest_kept = self._clock.now() - GRACE
        count = 0
        batch: dict[str, bytes] = {}
        prefix = project_prefix(project_id)
        async for found in self._objects.list(prefix):
            name = name_of(found.key) if found.key.startswith(prefix) else None
            if name is None or name in pinned or found.modified_at > oldest_kept:
                continue
            batch[found.key] = name
            if len(batch) == _OBJECTS:
                count += await self._delete(project_id, batch)
                batch = {}
        return count + await self._delete(project_id, batch)

    async def _delete(self, project_id: ProjectId, batch: dict[str, bytes]) -> int:
        """Delete those objects that still nobody pins.

        After a failure the lease is left to run out: the store may not be done with what it was asked.
        """
        if not batch:
            return 0
        asked = self._clock.now()
        pinned = await self._begin(project_id)
        keys = [key for key, name in batch.items() if name not in pinned]
        if keys and self._clock.now() < asked + _LEASE / 2:
            await self._objects.delete(keys)
        else:
            keys = []
        await self._store.snapshots.end_collection(project_id)
        return len(keys)

    async def _begin(self, project_id: ProjectId) -> frozenset[bytes]:
        now = self._clock.now()
        return await self._store.snapshots.begin_collection(project_id, until=now + _LEASE, now=now)

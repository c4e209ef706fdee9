"""Processes that ended long ago: their journals, then their rows."""

from datetime import timedelta

import structlog

from space.core.errors import SpaceError
from space.core.ports import Clock, NodeClient
from space.core.store import Store

log = structlog.get_logger()

_EVERY_SECONDS = 300.0
_BATCH = 200


class Retention:
    """Forgets.  The row goes last: it is what tells, after a crash, that a journal is still to be removed."""

    def __init__(self, store: Store, node: NodeClient, clock: Clock, *, keep: timedelta) -> None:
        self._store = store
        self._node = node
        self._clock = clock
        self._keep = keep

    async def forget(self) -> int:
        """Remove all that is due; returns how many processes that were."""
        count = 0
        while sessions := await self._store.processes.expired(self._clock.now() - self._keep, limit=_BATCH):
            for session_id in sessions:
                await self._node.forget_session(session_id)
            await self._store.processes.purge(sessions)
            count += len(sessions)
        return count + await self._forget_lost_starts()

    async def _forget_lost_starts(self) -> int:
        """Remove commands whose start was written down and never reached the node, e.g. because the server died.

        Their readers could have asked again for as long as commands are kept.  What the node does know is not over.
        """
        before = self._clock.now() - self._keep
        sessions = await self._store.processes.never_arrived(before, limit=_BATCH)
        gone = [session_id for session_id in sessions if await self._node.session_status(session_id) is None]
        if gone:
            await self._store.processes.purge(gone)
        return len(gone)

    async def run(self) -> None:
        """Forget every few minutes, until cancelled."""
        while True:
            try:
                await self.forget()
            except SpaceError as error:
                log.warning("processes.not_forgotten", error=error.message)
            await self._clock.sleep(_EVERY_SECONDS)

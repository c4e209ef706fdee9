"""When sandboxes were last used: noted on every request, written every few seconds."""

from datetime import datetime

import structlog

from space.core.errors import SpaceError
from space.core.ids import SandboxId
from space.core.ports import Clock
from space.core.store import Store

log = structlog.get_logger()


class Activity:
    """Collects activity so that a request costs no commit.

    A crash forgets at most the last seconds; idle times are counted in minutes and hours.
    """

    def __init__(self, store: Store, clock: Clock, *, every_seconds: float = 3.0) -> None:
        self._store = store
        self._clock = clock
        self._every = every_seconds
        self._used: dict[SandboxId, datetime] = {}

    def touch(self, sandbox_id: SandboxId) -> None:
        """Note that the sandbox is used now.  Only for ids that were found in the store."""
        self._used[sandbox_id] = self._clock.now()

    def newest(self, sandbox_id: SandboxId) -> datetime | None:
        """Return what is noted but not yet written."""
        return self._used.get(sandbox_id)

    async def flush(self) -> None:
        """Write what was noted; if that fails it stays noted."""
        used, self._used = self._used, {}
        if not used:
            return
        try:
            await self._store.sandboxes.touch(used)
        except BaseException:
            self._used = used | self._used
            raise

    async def run(self) -> None:
        """Write every few seconds, until cancelled."""
        while True:
            await self._clock.sleep(self._every)
            try:
                await self.flush()
            except SpaceError as error:
                log.warning("activity.not_written", error=error.message)

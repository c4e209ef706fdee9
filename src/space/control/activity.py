"""When sandboxes were last used: noted on every request, written every few seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
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
        self._in_flight: dict[SandboxId, int] = {}

    def touch(self, sandbox_id: SandboxId) -> None:
        """Note that the sandbox is used now.  Only for ids that were found in the store."""
        self._used[sandbox_id] = self._clock.now()

    @contextmanager
    def using(self, sandbox_id: SandboxId) -> Iterator[None]:
        """Note that the sandbox is used for as long as the block lasts.  Only for ids that were found in the store."""
        self._in_flight[sandbox_id] = self._in_flight.get(sandbox_id, 0) + 1
        self.touch(sandbox_id)
        try:
            yield
        finally:
            left = self._in_flight[sandbox_id] - 1
            if left:
                self._in_flight[sandbox_id] = left
            else:
                del self._in_flight[sandbox_id]
            self.touch(sandbox_id)

    def newest(self, sandbox_id: SandboxId) -> datetime | None:
        """Return what is noted but not yet written: now, while a request is in flight."""
        return self._clock.now() if sandbox_id in self._in_flight else self._used.get(sandbox_id)

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

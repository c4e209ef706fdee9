"""Starting the machines of pools: rows that become parked machines, and kinds that do not start at present."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from space.core.errors import SpaceError
from space.core.ids import PooledId
from space.core.pool import PooledMachine, PoolKey, PoolOrder
from space.core.ports import Clock, NodeClient
from space.core.store import Store
from space.host.failpoint import failpoint

log = structlog.get_logger(__name__)

_RETRY_SECONDS = (1.0, 60.0)  # first and longest pause after a machine that did not start


@dataclass(slots=True)
class _Failing:
    """A kind of machine that does not start."""

    reason: str
    count: int
    until: float


class PoolStarts:
    """Brings machines up, a task each; `parked` is told of those that wait, `ended` whenever a task is over."""

    def __init__(
        self,
        store: Store,
        node: NodeClient,
        clock: Clock,
        *,
        parked: Callable[[PoolKey, float], None],
        ended: Callable[[], None],
    ) -> None:
        self._store = store
        self._node = node
        self._clock = clock
        self._parked = parked
        self._ended = ended
        self._failing: dict[PoolKey, _Failing] = {}
        self.under_way: dict[PooledId, PooledMachine] = {}

    def begin(self, tasks: asyncio.TaskGroup, row: PooledMachine, *, is_new: bool) -> None:
        """Start a machine, whose row is written first if it `is_new`."""
        self.under_way[row.id] = row
        tasks.create_task(self._start(row, is_new=is_new))

    async def _start(self, row: PooledMachine, *, is_new: bool) -> None:
        try:
            if is_new:
                await self._store.pools.add(row)
                failpoint("pool.after_add")
            await self._park(row)
        except Exception as error:  # the store; the next round finds the row
            log.error("pool.machine_not_recorded", machine=row.id, error=repr(error))
            self._fail(row.key, "the machine could not be recorded")
        finally:
            self.under_way.pop(row.id, None)
            self._ended()

    async def _park(self, row: PooledMachine) -> None:
        began = self._clock.monotonic()
        try:
            await self._node.park(PoolOrder(id=row.id, key=row.key))
        except Exception as error:
            message = error.message if isinstance(error, SpaceError) else "an unexpected failure of the node"
            self._fail(row.key, message)
            log.warning("pool.machine_not_started", machine=row.id, error=repr(error))
            await self._store.pools.retire(row.id)  # the next round removes it
            return
        failpoint("pool.after_park")
        self._failing.pop(row.key, None)
        seconds = self._clock.monotonic() - began
        if await self._store.pools.parked(row.id, at=self._clock.now()):
            self._parked(row.key, seconds)

    # Kinds that do not start

    def _fail(self, key: PoolKey, reason: str) -> None:
        first, longest = _RETRY_SECONDS
        count = self._failing[key].count + 1 if key in self._failing else 1
        pause = min(longest, first * 2 ** min(count - 1, 10))
        self._failing[key] = _Failing(reason, count, self._clock.monotonic() + pause)

    def may_start(self, key: PoolKey) -> bool:
        """Whether a kind has not failed lately."""
        return key not in self._failing or self._failing[key].until <= self._clock.monotonic()

    def why_not(self, key: PoolKey) -> str | None:
        """Say why a kind did not start, if it did not."""
        failing = self._failing.get(key)
        return None if failing is None else failing.reason

    def next_try(self, longest: float) -> float:
        """Return the seconds until something may be tried again, at most `longest`."""
        now = self._clock.monotonic()
        waits = [failing.until - now for failing in self._failing.values()]
        return min([longest, *(wait for wait in waits if wait > 0)])

    def forgive(self, key: PoolKey | None = None) -> None:
        """Forget the failures of a kind, or all."""
        if key is None:
            self._failing.clear()
        else:
            self._failing.pop(key, None)

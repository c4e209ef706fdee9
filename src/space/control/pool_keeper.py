"""Keeps the machines of warm pools as they should be, out of the way of creates.

A row is written before the node is called, so whatever crashes, each machine has a row that says what is to become of
it, and each round brings both ends together: it is level-triggered and needs no memory of what was done before.  One
control plane keeps the pools of a node.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import structlog

from space.control.identity import new_id
from space.control.pool_demand import Figures, Wish, share_out, wanted
from space.core.errors import NotFound, SpaceError
from space.core.ids import PooledId
from space.core.lifecycle import Kind
from space.core.node import NodeFacts
from space.core.pool import Pool, PooledMachine, PooledState, PoolKey, PoolOrder
from space.core.ports import Clock, NodeClient, Templates
from space.core.store import Store
from space.host.failpoint import failpoint

log = structlog.get_logger(__name__)

_ROUND_SECONDS = 10.0  # between rounds when nothing happens
_QUIET_SECONDS = 0.25  # after a create, so that its first command is not slowed either
_YIELD_SECONDS = 3.0  # creates hold a refill up for so long, not for ever: else each of a stream of them would miss
_LOOK_SECONDS = 0.05  # between two looks at whether creates are under way
_IDLE_SECONDS = 5.0  # without a create, after which machines start two at a time
_RETRY_SECONDS = (1.0, 60.0)  # first and longest pause after a machine that did not start
_GIVE_WAY_SECONDS = 5.0  # after room was made for a create, until machines may take it again


@dataclass(slots=True)
class _Failing:
    """A kind of machine that does not start."""

    reason: str
    count: int
    until: float


@dataclass(frozen=True, slots=True)
class Counted:
    """The machines of one kind."""

    ready: int = 0
    starting: int = 0


class PoolKeeper:
    """Fills pools in the background; `run` owns its tasks."""

    def __init__(
        self,
        store: Store,
        node: NodeClient,
        templates: Templates,
        clock: Clock,
        *,
        pools: Callable[[NodeFacts], Awaitable[Sequence[Pool]]],
        budget_mib: int | None = None,
        busy: Callable[[], int] = lambda: 0,
    ) -> None:
        self._store = store
        self._node = node
        self._templates = templates
        self._clock = clock
        self._pools = pools
        self._budget_mib = budget_mib
        self._busy = busy  #: how many creates are under way
        self._figures: dict[PoolKey, Figures] = {}
        self._failing: dict[PoolKey, _Failing] = {}
        self._short: dict[PoolKey, str] = {}  # why a kind has fewer machines than wanted
        self._ready: Counter[PoolKey] = Counter()  # parked machines, as far as is known without asking
        self._parking: dict[PooledId, PooledMachine] = {}  # what a task of ours brings up
        self._changed = asyncio.Event()
        self._last_create = -_IDLE_SECONDS
        self._no_starts_before = 0.0
        self._tasks: asyncio.TaskGroup | None = None

    # What others tell and ask

    def wake(self) -> None:
        """Let a round begin now, and try again what failed before."""
        self._failing.clear()
        self._changed.set()

    def created(self, key: PoolKey, *, is_hit: bool) -> None:
        """Take note of a create; costs nothing."""
        figures = self._figures.get(key)
        if figures is None and not is_hit:
            return  # no pool has this kind
        self._last_create = self._clock.monotonic()
        self._ready[key] -= is_hit
        if figures is not None:
            figures.created(self._last_create, is_hit=is_hit)
        self._changed.set()

    def may_serve(self, key: PoolKey) -> bool:
        """Whether a create of this kind will probably find a machine; costs nothing."""
        return self._ready[key] > 0

    def figures(self, key: PoolKey) -> Figures:
        return self._figures.get(key, Figures())

    def wanted(self, pool: Pool, key: PoolKey) -> int:
        """Return how many machines the pool should hold at present, were there memory for all."""
        return wanted(pool.min, pool.max, self.figures(key).demand.level(self._clock.monotonic()))

    def reason(self, key: PoolKey) -> str | None:
        """Say why a kind has fewer machines than wanted, if it is known."""
        failing = self._failing.get(key)
        return failing.reason if failing is not None else self._short.get(key)

    def budget_mib(self, facts: NodeFacts) -> int:
        """Return how much memory parked machines may be promised in all; by default half of what sandboxes may use."""
        return facts.memory_mib // 2 if self._budget_mib is None else self._budget_mib

    async def give_way(self, memory_mib: int) -> bool:
        """End parked machines so that a sandbox of this size, which found no room, does; returns whether it may now.

        None is ended for a sandbox that is too large anyway.
        """
        facts = await self._node.facts()
        rows = [row for row in await self._store.pools.machines(facts.id) if row.state is PooledState.PARKED]
        free = facts.memory_available_mib
        if not rows or free + sum(row.key.resources.memory_mib for row in rows) < memory_mib:
            return False
        self._no_starts_before = self._clock.monotonic() + _GIVE_WAY_SECONDS
        ended = 0
        for row in rows:
            if ended and free >= memory_mib:
                break
            if await self._store.pools.retire(row.id):
                await self._remove(row)
                free += row.key.resources.memory_mib
                ended += 1
        log.info("pool.gave_way", machines=ended, memory_mib=memory_mib)
        return ended > 0 and free >= memory_mib

    # Rounds

    async def run(self) -> None:
        """Keep the pools until cancelled; what fails is tried again in a later round.  Machines outlive it."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                while True:
                    await self._quiet()
                    self._changed.clear()
                    try:
                        await self.tend()
                    except SpaceError as error:
                        log.warning("pool.round_failed", error=error.message)
                    except Exception as error:
                        log.error("pool.round_failed", error=repr(error))
                    await self._wait(self._pause())
            finally:
                self._tasks = None

    async def _quiet(self) -> None:
        """Wait while creates are under way, and a moment longer."""
        now = self._clock.monotonic()
        latest = now + _YIELD_SECONDS
        while now < latest and (self._busy() or now - self._last_create < _QUIET_SECONDS):
            await self._clock.sleep(_LOOK_SECONDS)
            now = self._clock.monotonic()

    def _pause(self) -> float:
        now = self._clock.monotonic()
        waits = [failing.until - now for failing in self._failing.values()]
        return min([_ROUND_SECONDS, *(wait for wait in waits if wait > 0)])

    async def _wait(self, seconds: float) -> None:
        """Return when something changed, or after so long."""
        waiting = [asyncio.ensure_future(self._changed.wait()), asyncio.ensure_future(self._clock.sleep(seconds))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    async def tend(self) -> None:
        """Do one round: remove what is not wanted, and begin to start what is missing."""
        facts = await self._node.facts()
        pools = await self._kinds(facts)
        parking = dict(self._parking)  # before the rows are read: such a task may end meanwhile
        before = frozenset(await self._node.parked())
        rows = await self._rows(facts, parking)
        after = frozenset(await self._node.parked())
        for pooled_id in before - {row.id for row in rows}:  # its row was there before it: nobody waits for it
            log.info("pool.stranger_retired", machine=pooled_id)
            await self._node.retire(pooled_id)
        kept = [row for row in rows if await self._keeps(row, pools, facts, before, after)]
        for key in [key for key in self._figures if key not in pools]:
            del self._figures[key]
            self._failing.pop(key, None)
        for key in pools:
            self._figures.setdefault(key, Figures())
        targets = self._targets(pools, facts)
        kept = await self._shrink(kept, targets)
        self._ready = Counter(row.key for row in kept if row.state is PooledState.PARKED)
        for row in kept:
            if row.state is PooledState.STARTING and row.id not in parking:  # of a server that has died
                self._start_task(row)
        self._fill(kept, targets, facts)

    async def _rows(self, facts: NodeFacts, parking: Mapping[PooledId, PooledMachine]) -> Sequence[PooledMachine]:
        """Return the node's machines, those included whose row is only just being written."""
        rows = await self._store.pools.machines(facts.id)
        known = {row.id for row in rows}
        return [*rows, *(row for row in parking.values() if row.id not in known)]

    async def _kinds(self, facts: NodeFacts) -> Mapping[PoolKey, Pool]:
        """Return the kinds of machines that pools want and that can run here."""
        kinds: dict[PoolKey, Pool] = {}
        for pool in await self._pools(facts):
            key = await self.key_of(pool, facts)
            if key is None:
                continue
            other = kinds.get(key)
            if other is None or (pool.min, pool.max) > (other.min, other.max):
                kinds[key] = pool  # two names of one template: one pool
        return kinds

    async def key_of(self, pool: Pool, facts: NodeFacts) -> PoolKey | None:
        """Return what the pool's machines are at present; None if there can be none."""
        runtime = facts.runtimes.get(pool.runtime)
        if runtime is None or not runtime.is_available:
            return None
        try:
            template = await self._templates.resolve(pool.template)
        except NotFound:
            return None
        return PoolKey(template_digest=template.digest, runtime=pool.runtime, resources=pool.resources)

    async def _keeps(
        self,
        row: PooledMachine,
        pools: Mapping[PoolKey, Pool],
        facts: NodeFacts,
        before: Collection[PooledId],
        after: Collection[PooledId],
    ) -> bool:
        """Whether this row is one of a pool's machines; what is none is brought to its end."""
        match row.state:
            case PooledState.BOUND:
                await self._look_after_bound(row, after)
                return False
            case PooledState.RETIRED:
                await self._remove(row)
                return False
            case PooledState.PARKED:
                is_good = row.id in after
            case PooledState.STARTING:
                is_good = True
        if is_good and row.key in pools and row.node_epoch == facts.epoch:
            return True
        if await self._store.pools.retire(row.id):
            log.info("pool.machine_retired", machine=row.id, runs=is_good)
            failpoint("pool.after_retire")
            await self._remove(row)
        return False

    async def _look_after_bound(self, row: PooledMachine, after: Collection[PooledId]) -> None:
        """Forget a claim that was used; end the machine if its sandbox went away before that."""
        if row.id in after:
            sandbox = None if row.sandbox_id is None else await self._store.sandboxes.find(row.sandbox_id)
            if sandbox is not None and sandbox.held_kind is Kind.CREATE:
                return
        await self._remove(row)

    async def _remove(self, row: PooledMachine) -> None:
        """End a machine that nobody can claim any more, and forget it."""
        try:
            await self._node.retire(row.id)
        except SpaceError as error:
            log.warning("pool.not_removed", machine=row.id, error=error.message)
            return  # its row says so: the next round tries again
        failpoint("pool.after_removal")
        await self._store.pools.forget(row.id)

    def _targets(self, pools: Mapping[PoolKey, Pool], facts: NodeFacts) -> Mapping[PoolKey, int]:
        """Share the memory out among the pools."""
        wishes = [
            Wish(min=pool.min, wanted=self.wanted(pool, key), memory_mib=key.resources.memory_mib)
            for key, pool in pools.items()
        ]
        budget = self.budget_mib(facts)
        given = share_out(wishes, budget)
        self._short = {
            key: f"the pools' memory budget of {budget} MiB is used up; see SPACE_POOL_MEMORY_MIB"
            for key, wish, count in zip(pools, wishes, given, strict=True)
            if count < wish.wanted
        }
        return dict(zip(pools, given, strict=True))

    async def _shrink(self, rows: Sequence[PooledMachine], targets: Mapping[PoolKey, int]) -> list[PooledMachine]:
        """Retire what exceeds the targets, parked machines only: those that start are parked first."""
        kept: list[PooledMachine] = []
        counts = dict.fromkeys(targets, 0)
        for row in sorted(rows, key=lambda row: row.state is PooledState.STARTING):
            is_surplus = row.state is PooledState.PARKED and counts[row.key] >= targets[row.key]
            if is_surplus:
                if await self._store.pools.retire(row.id):
                    log.info("pool.surplus_retired", machine=row.id)
                    await self._remove(row)
                continue
            counts[row.key] += 1
            kept.append(row)
        return kept

    def _fill(self, rows: Sequence[PooledMachine], targets: Mapping[PoolKey, int], facts: NodeFacts) -> None:
        """Begin to start what is missing, the emptiest pool first."""
        now = self._clock.monotonic()
        places = (2 if now - self._last_create >= _IDLE_SECONDS else 1) - len(self._parking)
        counts = {key: sum(row.key == key for row in rows) for key in targets}
        free = facts.memory_available_mib
        while places > 0 and now >= self._no_starts_before:
            missing = [
                key
                for key, target in targets.items()
                if counts[key] < target and (key not in self._failing or self._failing[key].until <= now)
            ]
            if not missing:
                return
            key = min(missing, key=lambda key: counts[key] / targets[key])
            memory = key.resources.memory_mib
            if memory > free:
                self._short[key] = f"the node has {free} MiB of memory left"
                targets = {other: target for other, target in targets.items() if other != key}
                continue
            row = PooledMachine(
                id=PooledId(new_id("mch", self._clock)),
                node_id=facts.id,
                node_epoch=facts.epoch,
                key=key,
                state=PooledState.STARTING,
                created_at=self._clock.now(),
            )
            self._start_task(row, is_new=True)
            counts[key] += 1
            free -= memory
            places -= 1

    # One machine

    def _start_task(self, row: PooledMachine, *, is_new: bool = False) -> None:
        if self._tasks is not None:
            self._parking[row.id] = row
            self._tasks.create_task(self._start(row, is_new=is_new))

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
            self._parking.pop(row.id, None)
            self._changed.set()

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
            self._ready[row.key] += 1
            if row.key in self._figures:
                self._figures[row.key].refilled(seconds)

    def _fail(self, key: PoolKey, reason: str) -> None:
        first, longest = _RETRY_SECONDS
        count = self._failing[key].count + 1 if key in self._failing else 1
        pause = min(longest, first * 2 ** min(count - 1, 10))
        self._failing[key] = _Failing(reason, count, self._clock.monotonic() + pause)

"""Keeps the machines of warm pools as they should be, out of the way of creates.

A row is written before the node is called, so whatever crashes, each machine has a row that says what is to become of
it, and each round brings both ends together: it is level-triggered and needs no memory of what was done before.  One
control plane keeps the pools of a node.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog

from space.control.identity import new_id
from space.control.pool_demand import Figures, Wish, share_out, wanted
from space.control.pool_endings import PoolEndings
from space.control.pool_starts import PoolStarts
from space.core.errors import NotFound, SpaceError
from space.core.ids import PooledId
from space.core.node import NodeFacts
from space.core.pool import Pool, PooledMachine, PooledState, PoolKey
from space.core.ports import Clock, NodeClient, Templates
from space.core.store import Store

log = structlog.get_logger(__name__)

_ROUND_SECONDS = 10.0  # between rounds when nothing happens
_QUIET_SECONDS = 0.25  # after a create, so that its first command is not slowed either
_YIELD_SECONDS = 3.0  # creates hold a refill up for so long, not for ever: else each of a stream of them would miss
_LOOK_SECONDS = 0.05  # between two looks at whether creates are under way
_IDLE_SECONDS = 5.0  # without a create, after which machines start two at a time
_GIVE_WAY_SECONDS = 5.0  # after room was made for a create, until machines may take it again


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
        self._changed = asyncio.Event()
        self._figures: dict[PoolKey, Figures] = {}
        self._endings = PoolEndings(store, node)
        self._starts = PoolStarts(store, node, clock, parked=self._parked, ended=self._changed.set)
        self._short: dict[PoolKey, str] = {}  # why a kind has fewer machines than wanted
        self._ready: Counter[PoolKey] = Counter()  # parked machines, as far as is known without asking
        self._last_create = -_IDLE_SECONDS
        self._no_starts_before = 0.0
        self._tasks: asyncio.TaskGroup | None = None

    # What others tell and ask

    def wake(self) -> None:
        """Let a round begin now, and try again what failed before."""
        self._starts.forgive()
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
        return self._starts.why_not(key) or self._short.get(key)

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
            if await self._endings.retire(row, "makes way"):
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
                    await self._wait(self._starts.next_try(_ROUND_SECONDS))
            finally:
                self._tasks = None

    async def _quiet(self) -> None:
        """Wait while creates are under way, and a moment longer."""
        now = self._clock.monotonic()
        latest = now + _YIELD_SECONDS
        while now < latest and (self._busy() or now - self._last_create < _QUIET_SECONDS):
            await self._clock.sleep(_LOOK_SECONDS)
            now = self._clock.monotonic()

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
        parking = dict(self._starts.under_way)  # before the rows are read: such a task may end meanwhile
        before = frozenset(await self._node.parked())
        rows = await self._rows(facts, parking)
        running = frozenset(await self._node.parked())  # after the rows were read: what they call parked runs
        for pooled_id in before - {row.id for row in rows}:  # its row was there before it: nobody waits for it
            await self._endings.stranger(pooled_id)
        kept = [row for row in rows if await self._endings.keeps(row, pools, facts, running)]
        for key in [key for key in self._figures if key not in pools]:
            del self._figures[key]
            self._starts.forgive(key)
        for key in pools:
            self._figures.setdefault(key, Figures())
        targets = self._targets(pools, facts)
        kept = await self._shrink(kept, targets)
        self._ready = Counter(row.key for row in kept if row.state is PooledState.PARKED)
        for row in kept:
            if row.state is PooledState.STARTING and row.id not in parking:  # of a server that has died
                self._start(row)
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
                await self._endings.retire(row, "surplus")
                continue
            counts[row.key] += 1
            kept.append(row)
        return kept

    def _fill(self, rows: Sequence[PooledMachine], targets: Mapping[PoolKey, int], facts: NodeFacts) -> None:
        """Begin to start what is missing, the emptiest pool first."""
        now = self._clock.monotonic()
        places = (2 if now - self._last_create >= _IDLE_SECONDS else 1) - len(self._starts.under_way)
        counts = {key: sum(row.key == key for row in rows) for key in targets}
        free = facts.memory_available_mib
        while places > 0 and now >= self._no_starts_before:
            missing = [key for key, target in targets.items() if counts[key] < target and self._starts.may_start(key)]
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
            self._start(row, is_new=True)
            counts[key] += 1
            free -= memory
            places -= 1

    # Starts

    def _start(self, row: PooledMachine, *, is_new: bool = False) -> None:
        if self._tasks is not None:
            self._starts.begin(self._tasks, row, is_new=is_new)

    def _parked(self, key: PoolKey, seconds: float) -> None:
        self._ready[key] += 1
        if key in self._figures:
            self._figures[key].refilled(seconds)

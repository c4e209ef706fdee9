"""Warm pools as operators see them: set, listed with their figures, deleted."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from space.control.audit import entry_for
from space.control.placement import choose_runtime
from space.control.pool_keeper import PoolKeeper
from space.core.account import Call, Principal, Scope
from space.core.errors import FailedPrecondition, InvalidRequest, NotFound, SpaceError
from space.core.node import NodeFacts
from space.core.pool import Pool, PooledState, PoolKey
from space.core.ports import Clock, NodeClient, Templates
from space.core.sandbox import Resources, Sandbox
from space.core.store import Store

_MAX_SIZE = 1000  # machines of one pool, whatever the node can hold
_DEFAULT = Resources()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """A pool and how it does.  Counts are since the server started."""

    pool: Pool
    is_configured: bool  #: by the server's settings, so that only they can take it away
    ready: int
    starting: int
    wanted: int  #: at present demand
    hits: int
    misses: int
    last_refill_seconds: float | None
    mean_refill_seconds: float | None
    reason: str | None  #: why it has fewer machines than wanted


class Pools:
    """The calls on pools, which are the admins', and what creates tell of their luck."""

    def __init__(
        self,
        store: Store,
        node: NodeClient,
        templates: Templates,
        clock: Clock,
        *,
        configured: Mapping[str, tuple[int, int]] | None = None,
        runtime: str | None = None,
        budget_mib: int | None = None,
        busy: Callable[[], int] = lambda: 0,
    ) -> None:
        self._store = store
        self._node = node
        self._templates = templates
        self._clock = clock
        self._configured = dict(configured or {})  #: template → (min, max); they last as long as the setting
        self._runtime = runtime
        self._began = clock.now()
        self.keeper = PoolKeeper(store, node, templates, clock, pools=self._all, budget_mib=budget_mib, busy=busy)

    async def run(self) -> None:
        """Keep the pools filled until cancelled."""
        await self.keeper.run()

    # Creates

    def claimed(self, sandbox: Sandbox) -> None:
        """Tell of a create that was just recorded: one with a `pooled_id` is a hit, else a miss if it has a pool."""
        if sandbox.snapshot_id is not None:
            return  # it goes on from a moment: no pool could have served it
        key = PoolKey(template_digest=sandbox.template_digest, runtime=sandbox.runtime, resources=sandbox.resources)
        self.keeper.created(key, is_hit=sandbox.pooled_id is not None)

    def may_serve(self, key: PoolKey) -> bool:
        """Whether a create of this kind will probably find a machine, which holds its memory already."""
        return self.keeper.may_serve(key)

    async def give_way(self, memory_mib: int) -> bool:
        """Free so much memory for a sandbox that found no room; returns whether trying again makes sense."""
        return await self.keeper.give_way(memory_mib)

    # Operators

    async def set(
        self,
        call: Call,
        *,
        template: str,
        runtime: str | None = None,
        resources: Resources = _DEFAULT,
        minimum: int,
        maximum: int | None = None,
    ) -> PoolStatus:
        """Make a pool, or change the size of the one of this template, runtime and resources.

        Raises `NotFound` for the template, `Unsupported` for the runtime, `InvalidRequest`.
        """
        call.principal.require(Scope.ADMIN)
        maximum = minimum if maximum is None else maximum
        for field, value in (("min", minimum), ("max", maximum)):
            if not 0 <= value <= _MAX_SIZE:
                raise InvalidRequest(f"{field} is 0 to {_MAX_SIZE}", field=field, limit=_MAX_SIZE)
        if maximum < minimum:
            raise InvalidRequest("max is min or more", field="max")
        await self._templates.resolve(template)
        facts = await self._node.facts()
        now = self._clock.now()
        pool = Pool(
            template=template,
            runtime=choose_runtime([facts], wanted=runtime, default=self._runtime),
            resources=resources,
            min=minimum,
            max=maximum,
            created_at=now,
        )
        audit = entry_for(
            call, now, target=template, runtime=pool.runtime, memory_mib=resources.memory_mib, min=minimum, max=maximum
        )
        pool = await self._store.pools.set(pool, audit)
        self.keeper.wake()
        return await self._status(pool, facts, await self._counts(facts), is_configured=False)

    async def delete(self, call: Call, template: str) -> int:
        """Remove the pools of a template, whose machines end; returns how many there were.

        Raises `NotFound`, and `FailedPrecondition` for one that only the settings can take away.
        """
        call.principal.require(Scope.ADMIN)
        now = self._clock.now()
        if not any(pool.template == template for pool in await self._store.pools.list()):
            if template in self._configured:
                raise FailedPrecondition(f"the pool of {template} comes from SPACE_POOLS; change it there")
            raise NotFound(f"there is no pool of {template[:128]}", template=template[:128])
        count = await self._store.pools.delete(template, audit=entry_for(call, now, target=template))
        self.keeper.wake()
        return count

    async def list(self, who: Principal) -> Sequence[PoolStatus]:
        """List all pools, by template."""
        who.require(Scope.ADMIN)
        facts = await self._node.facts()
        stored = {_name(pool) for pool in await self._store.pools.list()}
        counts = await self._counts(facts)
        found = [
            await self._status(pool, facts, counts, is_configured=_name(pool) not in stored)
            for pool in await self._all(facts)
        ]
        return sorted(found, key=lambda each: (each.pool.template, each.pool.runtime, each.pool.resources.memory_mib))

    async def _all(self, facts: NodeFacts) -> Sequence[Pool]:
        """Return the pools that were set, and those of the settings that none of them replaces."""
        pools = {_name(pool): pool for pool in await self._configured_pools(facts)}
        pools |= {_name(pool): pool for pool in await self._store.pools.list()}
        return list(pools.values())

    async def _configured_pools(self, facts: NodeFacts) -> Sequence[Pool]:
        if not self._configured:
            return ()
        try:
            runtime = choose_runtime([facts], wanted=None, default=self._runtime)
        except SpaceError:  # none works here at present
            return ()
        return [
            Pool(
                template=template,
                runtime=runtime,
                resources=_DEFAULT,
                min=minimum,
                max=maximum,
                created_at=self._began,
            )
            for template, (minimum, maximum) in self._configured.items()
        ]

    async def _counts(self, facts: NodeFacts) -> Counter[tuple[PoolKey, PooledState]]:
        return Counter((row.key, row.state) for row in await self._store.pools.machines(facts.id))

    async def _status(
        self, pool: Pool, facts: NodeFacts, counts: Counter[tuple[PoolKey, PooledState]], *, is_configured: bool
    ) -> PoolStatus:
        key = await self.keeper.key_of(pool, facts)
        if key is None:
            reason = f"template {pool.template} or runtime {pool.runtime} is not available on this node"
            key = PoolKey(template_digest="", runtime=pool.runtime, resources=pool.resources)
        else:
            reason = self.keeper.reason(key) or ""
        figures = self.keeper.figures(key)
        ready, wanted = counts[key, PooledState.PARKED], self.keeper.wanted(pool, key)
        return PoolStatus(
            pool=pool,
            is_configured=is_configured,
            ready=ready,
            starting=counts[key, PooledState.STARTING],
            wanted=wanted,
            hits=figures.hits,
            misses=figures.misses,
            last_refill_seconds=figures.last_refill_seconds,
            mean_refill_seconds=figures.mean_refill_seconds,
            reason=reason if reason and ready < wanted else None,
        )


def _name(pool: Pool) -> tuple[str, str, Resources]:
    return pool.template, pool.runtime, pool.resources

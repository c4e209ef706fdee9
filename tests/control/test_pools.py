"""Warm pools: how full they are kept, and what is left of them after failures."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.control.pool_demand import Demand, Wish, share_out, wanted
from space.control.pools import Pools, PoolStatus
from space.core.account import Scope
from space.core.errors import (
    CapacityUnavailable,
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    RuntimeFailed,
    Unsupported,
)
from space.core.ids import PooledId
from space.core.node import NodeFacts
from space.core.pool import PooledMachine, PooledState, PoolKey
from space.core.sandbox import Resources
from space.core.store import AuditFilter, Creation
from space.core.template import Template
from space.host.failpoint import arm
from space.testing.clock import FakeClock
from space.testing.control_plane import ControlPlane, a_call, control_plane, principal
from space.testing.node import FakeNode
from space.testing.rows import creation, new_id
from space.testing.templates import BASE, FakeTemplates

pytestmark = pytest.mark.anyio

SMALL = Resources(memory_mib=256)
KEY = PoolKey(template_digest=BASE.digest, runtime="fake", resources=Resources())
REBUILT = "sha256:" + "1" * 64
ADMIN = a_call("setPool")


class PoolNode(FakeNode):
    """A node whose memory is finite, and whose epoch and runtime change as tests say."""

    def __init__(self, *, memory_mib: int = 65_536) -> None:
        super().__init__(memory_mib=memory_mib)
        self.epoch = 1
        self.is_able = True

    async def facts(self) -> NodeFacts:
        facts = await super().facts()
        able = replace(self.runtime, is_available=self.is_able)
        promised = sum(key.resources.memory_mib for key in self.pool.values()) + 512 * len(self.bound)
        return replace(
            facts, epoch=self.epoch, runtimes={"fake": able}, memory_available_mib=self.memory_mib - promised
        )


class ChangingTemplates(FakeTemplates):
    """Templates that can be built anew, or removed."""

    def __init__(self) -> None:
        super().__init__()

    def rebuild(self, digest: str) -> None:
        self._templates = (replace(BASE, digest=digest),)

    def remove(self) -> None:
        self._templates: tuple[Template, ...] = (replace(BASE, name="other"),)


class Kept:
    """A control plane whose pools are kept, by a clock that the test turns."""

    def __init__(self, plane: ControlPlane, node: PoolNode, clock: FakeClock, **options: Any) -> None:
        self.plane = plane
        self.node = node
        self.clock = clock
        self.templates = ChangingTemplates()
        self.busy = 0
        self.options = options
        self.pools = self._make()
        self._task: asyncio.Task[None] | None = None

    def _make(self) -> Pools:
        options = {"busy": lambda: self.busy, **self.options}
        return Pools(self.plane.store, self.node, self.templates, self.clock, **options)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the pools meanwhile."""
        task = asyncio.create_task(self.pools.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def restart(self) -> None:
        """Go on with a new server, which remembers nothing."""
        self.pools = self._make()

    async def until(self, condition: Callable[[], bool], *, seconds: float = 120) -> None:
        """Let time pass, at most so much of it."""
        for _ in range(int(seconds * 5)):
            await self.settle()
            if condition():
                return
            self.clock.advance(0.2)
        raise AssertionError(f"did not come about: {await self.rows()}, node has {self.node.pool}")

    async def settle(self) -> None:
        """Let all happen that needs no time; the store's thread takes a little of its own."""
        for _ in range(4):
            await asyncio.sleep(0.001)
        await self.plane.store.pools.forget(PooledId(new_id("mch")))  # comes after what is queued there

    async def pass_time(self, seconds: float) -> None:
        for _ in range(20):
            self.clock.advance(seconds / 20)
            await self.settle()

    async def set(self, minimum: int, maximum: int | None = None, **options: Any) -> PoolStatus:
        return await self.pools.set(ADMIN, **{"template": "base", **options}, minimum=minimum, maximum=maximum)

    async def filled(self, count: int) -> None:
        """Let time pass until so many machines are parked, and no others are there."""
        for _ in range(240):
            await self.settle()
            states = [row.state for row in await self.rows()]
            if len(self.node.pool) == count and states == [PooledState.PARKED] * count:
                return
            self.clock.advance(0.5)
        raise AssertionError(f"not {count}: {await self.rows()}, node has {self.node.pool}")

    async def rows(self) -> list[PooledMachine]:
        return list(await self.plane.store.pools.machines(self.node.id))

    async def status(self) -> PoolStatus:
        (status,) = await self.pools.list(principal())
        return status

    async def claim(self, **changes: Any) -> Creation:
        """Record a create as its transaction does, and tell of it."""
        made = replace(creation(at=self.clock.now(), **changes), pool=KEY)
        self.pools.claimed(await self.plane.store.sandboxes.create(made))
        return made

    async def create(self) -> Creation:
        """Record a create and bind what it claimed."""
        made = await self.claim()
        sandbox = await self.plane.get(made.sandbox.id)
        if sandbox.pooled_id is not None:
            self.node.pool.pop(sandbox.pooled_id)
        return made


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Kept]:
    clock, node = FakeClock(), PoolNode()
    async with control_plane(tmp_path, clock=clock, node=node, is_working=False) as plane:
        yield Kept(plane, node, clock)


# How many


@given(st.integers(0, 50), st.integers(0, 50), st.floats(0, 1000))
def test_what_is_wanted_lies_between_min_and_max(minimum: int, maximum: int, level: float) -> None:
    assert minimum <= wanted(minimum, maximum, level) <= max(minimum, maximum)


def test_demand_rises_with_creates_and_falls_with_time() -> None:
    demand = Demand()
    for second in range(10):
        demand.note(float(second))
    assert 9 <= demand.level(9) <= 10
    assert demand.level(9 + 60) == pytest.approx(demand.level(9) / 2.71828, rel=1e-4)
    assert wanted(0, 100, demand.level(9 + 600)) == 0


wishes = st.lists(
    st.builds(
        lambda least, more, memory: Wish(min=least, wanted=least + more, memory_mib=memory),
        st.integers(0, 20),
        st.integers(0, 20),
        st.sampled_from([64, 256, 512, 1024]),
    ),
    max_size=6,
)


@given(wishes, st.integers(0, 40_000))
def test_pools_share_no_more_memory_than_there_is_and_leave_none_that_fits(asked: list[Wish], budget: int) -> None:
    given_out = share_out(asked, budget)
    left = budget - sum(count * wish.memory_mib for count, wish in zip(given_out, asked, strict=True))
    assert left >= 0
    for count, wish in zip(given_out, asked, strict=True):
        assert 0 <= count <= wish.wanted
        assert count == wish.wanted or wish.memory_mib > left


def test_the_minimum_of_one_pool_comes_before_the_demand_of_another() -> None:
    busy, small = Wish(min=1, wanted=10, memory_mib=512), Wish(min=3, wanted=3, memory_mib=512)
    assert share_out([busy, small], 5 * 512) == [2, 3]


# Keeping


async def test_a_new_pool_is_filled_and_an_unset_one_emptied(kept: Kept) -> None:
    async with kept.running():
        assert (await kept.set(3)).ready == 0
        await kept.filled(3)
        status = await kept.status()
        assert (status.ready, status.starting, status.wanted, status.reason) == (3, 0, 3, None)
        assert await kept.pools.delete(a_call("deletePool"), "base") == 1
        await kept.filled(0)
        assert await kept.pools.list(principal()) == []


async def test_a_smaller_pool_ends_what_is_too_much(kept: Kept) -> None:
    async with kept.running():
        await kept.set(4)
        await kept.filled(4)
        await kept.set(1)
        await kept.filled(1)


async def test_what_was_claimed_is_replaced_and_counted(kept: Kept) -> None:
    async with kept.running():
        await kept.set(2)
        await kept.filled(2)
        before = set(kept.node.pool)
        made = await kept.create()
        await kept.filled(2)
        bound = (await kept.plane.get(made.sandbox.id)).pooled_id
        assert bound in before
        assert bound not in kept.node.pool
        status = await kept.status()
        assert (status.hits, status.misses) == (1, 0)
        assert status.mean_refill_seconds is not None


async def test_creates_that_find_nothing_are_misses_and_those_of_no_pool_are_not(kept: Kept) -> None:
    gate = kept.node.hold("park")
    async with kept.running():
        await kept.set(1)
        await kept.until(gate.entered.is_set)
        await kept.claim()
        await kept.claim(resources=SMALL)
        status = await kept.status()
        assert (status.ready, status.starting, status.hits, status.misses) == (0, 1, 0, 1)
        gate.open()


async def test_demand_makes_it_grow_up_to_its_maximum_and_shrink_again(kept: Kept) -> None:
    async with kept.running():
        await kept.set(1, 4)
        await kept.filled(1)
        for _ in range(10):
            await kept.create() if kept.node.pool else await kept.claim()
        await kept.filled(4)
        await kept.pass_time(300)
        await kept.filled(1)


async def test_machines_are_started_one_by_one_after_a_create_and_two_by_two_when_idle(kept: Kept) -> None:
    gate = kept.node.hold("park")
    async with kept.running():
        await kept.set(6)
        await kept.until(gate.entered.is_set)
        await kept.pass_time(1)
        assert len(await kept.rows()) == 2
        await kept.claim()
        gate.open()
        await kept.filled(6)


async def test_a_refill_waits_while_creates_are_under_way_but_not_for_ever(kept: Kept) -> None:
    async with kept.running():
        await kept.set(1)
        await kept.filled(1)
        kept.busy = 1
        await kept.create()
        await kept.pass_time(2)
        assert not kept.node.pool
        await kept.until(lambda: len(kept.node.pool) == 1, seconds=8)
        await kept.create()
        await kept.pass_time(1)
        assert not kept.node.pool
        kept.busy = 0
        await kept.filled(1)


async def test_no_more_memory_is_promised_than_the_budget_and_the_list_says_so(tmp_path: Path) -> None:
    clock, node = FakeClock(), PoolNode()
    async with control_plane(tmp_path, clock=clock, node=node, is_working=False) as plane:
        kept = Kept(plane, node, clock, budget_mib=3 * 512 + 100)
        async with kept.running():
            await kept.set(5)
            await kept.filled(3)
            await kept.pass_time(30)
            await kept.filled(3)
            assert "budget of 1636 MiB" in ((await kept.status()).reason or "")


async def test_a_pool_takes_no_memory_that_the_node_does_not_have(kept: Kept) -> None:
    kept.node.memory_mib = 4 * 512
    kept.pools.keeper._budget_mib = 1 << 20
    async with kept.running():
        await kept.set(9)
        await kept.filled(4)
        await kept.pass_time(10)
        assert "0 MiB of memory left" in ((await kept.status()).reason or "")


async def test_parked_machines_give_way_to_a_sandbox_that_finds_no_room(kept: Kept) -> None:
    kept.node.memory_mib = 4 * 512
    kept.pools.keeper._budget_mib = 1 << 20
    async with kept.running():
        await kept.set(4)
        await kept.filled(4)
        assert not await kept.pools.give_way(5 * 512)  # it would never fit: nothing is ended for it
        assert len(kept.node.pool) == 4
        assert await kept.pools.give_way(2 * 512)
        assert len(kept.node.pool) == 2
        await kept.pass_time(2)
        assert len(kept.node.pool) == 2  # the memory is kept for whom it was freed
    assert not any(row.state is PooledState.BOUND for row in await kept.rows())


async def test_on_a_full_node_a_create_gets_the_warm_machine_of_its_kind_and_another_ends_one(tmp_path: Path) -> None:
    clock, node = FakeClock(), PoolNode(memory_mib=2 * 512)
    async with control_plane(tmp_path, clock=clock, node=node) as plane:
        kept = Kept(plane, node, clock, budget_mib=1 << 20)
        plane.sandboxes._pools = kept.pools
        async with kept.running():
            await kept.set(2)
            await kept.filled(2)
            warm, operation = await plane.create()
            assert warm.pooled_id is not None
            assert len(node.pool) == 1
            await plane.ended(operation)
            cold, operation = await plane.create(resources=SMALL)
            assert cold.pooled_id is None
            assert not node.pool
            await plane.ended(operation)
            with pytest.raises(CapacityUnavailable):
                await plane.create()
            assert (await kept.status()).hits == 1


async def test_a_machine_that_does_not_start_is_tried_again_ever_later_and_leaves_nothing(kept: Kept) -> None:
    kept.node.fail("park", *[RuntimeFailed("runsc did not start it")] * 4)
    async with kept.running():
        await kept.set(1)
        await kept.until(lambda: kept.node.failures_left("park") <= 3)
        assert (await kept.status()).reason == "runsc did not start it"
        began = kept.clock.monotonic()
        await kept.filled(1)
        assert kept.clock.monotonic() - began > 5
        assert (await kept.status()).reason is None


# What is no longer right


async def test_a_template_that_was_built_anew_replaces_its_machines(kept: Kept) -> None:
    async with kept.running():
        await kept.set(2)
        await kept.filled(2)
        old = set(kept.node.pool)
        kept.templates.rebuild(REBUILT)
        await kept.until(lambda: len(kept.node.pool) == 2 and not old & set(kept.node.pool))
        assert {key.template_digest for key in kept.node.pool.values()} == {REBUILT}


async def test_machines_of_a_template_that_is_gone_or_a_runtime_that_fails_are_ended(kept: Kept) -> None:
    async with kept.running():
        await kept.set(2)
        await kept.filled(2)
        kept.node.is_able = False
        await kept.until(lambda: not kept.node.pool)
        assert "not available" in ((await kept.status()).reason or "")
        kept.node.is_able = True
        await kept.filled(2)
        kept.templates.remove()
        await kept.until(lambda: not kept.node.pool)


async def test_machines_of_an_epoch_that_is_over_are_ended(kept: Kept) -> None:
    async with kept.running():
        await kept.set(1)
        await kept.filled(1)
        old = set(kept.node.pool)
        kept.node.epoch = 2
        await kept.until(lambda: bool(kept.node.pool) and not old & set(kept.node.pool))
        assert [row.node_epoch for row in await kept.rows()] == [2]


# Crashes


async def test_after_a_restart_parked_machines_are_used_again(kept: Kept) -> None:
    async with kept.running():
        await kept.set(2)
        await kept.filled(2)
    before = set(kept.node.pool)
    await kept.restart()
    async with kept.running():
        await kept.pass_time(15)
        await kept.filled(2)
        assert set(kept.node.pool) == before


async def test_a_start_that_a_crash_cut_off_is_finished(kept: Kept) -> None:
    gate = kept.node.hold("park")
    async with kept.running():
        await kept.set(1)
        await kept.until(gate.entered.is_set)
    (row,) = await kept.rows()
    assert row.state is PooledState.STARTING
    gate.open()
    await kept.restart()
    async with kept.running():
        await kept.filled(1)
        assert set(kept.node.pool) == {row.id}


@pytest.mark.parametrize("is_crash", [True, False], ids=["crash", "failure"])
@pytest.mark.parametrize("place", ["after_add", "after_park", "after_retire", "after_removal"])
async def test_whatever_step_is_cut_off_the_pool_is_full_in_the_end_and_nothing_is_left(
    kept: Kept, place: str, is_crash: bool
) -> None:
    arm(f"pool.{place}:error")
    try:
        async with kept.running():
            await kept.set(2)
            await kept.pass_time(2)
            kept.templates.rebuild(REBUILT)
            await kept.pass_time(11 if is_crash else 30)
            if not is_crash:
                await kept.filled(2)
        arm("")
        await kept.restart()
        async with kept.running():
            await kept.until(lambda: {key.template_digest for key in kept.node.pool.values()} == {REBUILT})
            await kept.filled(2)
            assert set(kept.node.pool) == {row.id for row in await kept.rows()}
    finally:
        arm("")


async def test_rows_without_a_machine_are_forgotten_and_machines_without_a_row_ended(kept: Kept) -> None:
    async with kept.running():
        await kept.set(2)
        await kept.filled(2)
    lost, stranger = next(iter(kept.node.pool)), PooledId(new_id("mch"))
    del kept.node.pool[lost]
    kept.node.pool[stranger] = KEY
    await kept.restart()
    async with kept.running():
        await kept.filled(2)
        assert lost not in kept.node.pool
        assert stranger not in kept.node.pool


async def test_a_retired_row_is_forgotten_once_the_node_has_ended_its_machine(kept: Kept) -> None:
    async with kept.running():
        await kept.set(1)
        await kept.filled(1)
        kept.node.fail("retire", *[RuntimeFailed("it hangs")] * 2)
        await kept.set(0)
        await kept.until(lambda: not kept.node.failures_left("retire"))
        await kept.filled(0)


async def test_a_claim_whose_sandbox_went_away_before_it_was_bound_leaves_no_machine(kept: Kept) -> None:
    async with kept.running():
        await kept.set(1)
        await kept.filled(1)
        made = await kept.claim()
        await kept.pass_time(12)
        claimed = (await kept.plane.get(made.sandbox.id)).pooled_id
        assert claimed in kept.node.pool  # its create may still bind it
        async with _working(kept.plane):
            await kept.plane.delete(made.sandbox.id)
        await kept.until(lambda: claimed not in kept.node.pool)
        await kept.filled(1)


@contextlib.asynccontextmanager
async def _working(plane: ControlPlane) -> AsyncIterator[None]:
    """Let operations be driven meanwhile."""
    task = asyncio.create_task(plane.worker.run())
    await asyncio.sleep(0)
    try:
        yield
        await plane.idle()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_round_that_fails_does_not_end_the_keeper(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = kept.node.parked, [OSError("no"), RuntimeFailed("no")]

    async def parked() -> Any:
        if failures:
            raise failures.pop()
        return await real()

    monkeypatch.setattr(kept.node, "parked", parked)
    async with kept.running():
        await kept.set(1)
        await kept.filled(1)


# Settings and calls


async def test_pools_of_the_settings_last_as_long_as_the_setting(tmp_path: Path) -> None:
    clock, node = FakeClock(), PoolNode()
    async with control_plane(tmp_path, clock=clock, node=node, is_working=False) as plane:
        kept = Kept(plane, node, clock, configured={"base": (2, 2)})
        async with kept.running():
            await kept.filled(2)
            assert (await kept.status()).is_configured
            with pytest.raises(FailedPrecondition, match="SPACE_POOLS"):
                await kept.pools.delete(a_call("deletePool"), "base")
            await kept.set(1)  # what is set through the API takes its place
            await kept.filled(1)
            assert not (await kept.status()).is_configured
            await kept.pools.delete(a_call("deletePool"), "base")
            await kept.filled(2)
        kept.options = {}
        await kept.restart()
        async with kept.running():
            await kept.until(lambda: not node.pool)


async def test_what_cannot_be_is_refused_by_name(kept: Kept) -> None:
    for minimum, maximum, field in ((-1, None, "min"), (2, 1, "max"), (1, 5000, "max")):
        with pytest.raises(InvalidRequest) as refused:
            await kept.set(minimum, maximum)
        assert refused.value.details["field"] == field
    with pytest.raises(NotFound):
        await kept.set(1, template="nosuch")
    with pytest.raises(Unsupported):
        await kept.set(1, runtime="qemu")
    with pytest.raises(NotFound):
        await kept.pools.delete(a_call("deletePool"), "base")


async def test_only_an_admin_may_look_or_change_and_changes_are_audited(kept: Kept) -> None:
    nobody = principal(scopes=frozenset(Scope) - {Scope.ADMIN})
    call = a_call("setPool", who=nobody)
    with pytest.raises(PermissionDenied):
        await kept.pools.set(call, template="base", minimum=1)
    with pytest.raises(PermissionDenied):
        await kept.pools.delete(call, "base")
    with pytest.raises(PermissionDenied):
        await kept.pools.list(nobody)
    await kept.set(1)
    await kept.pools.delete(a_call("deletePool"), "base")
    page = await kept.plane.store.audit.list(AuditFilter(target="base"), limit=9, cursor=None)
    assert [(entry.action, entry.outcome) for entry in page.items] == [("deletePool", "ok"), ("setPool", "ok")]

"""Warm pools: each parked machine is claimed once, and counts once."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from space.core.errors import CapacityUnavailable, LimitExceeded
from space.core.ids import NodeId
from space.core.lifecycle import Kind
from space.core.pool import Pool, PooledMachine, PooledState
from space.core.sandbox import Resources, Sandbox
from space.core.store import AuditFilter, Room, Store
from space.testing.conformance.store.made import SECOND, a_running, after, failure
from space.testing.rows import KEY, NODE, PROJECT, START, creation, entry, machine

OTHER_NODE = NodeId("nod" + "v" * 26)
SMALL = Resources(memory_mib=256)


async def _parked(store: Store, *, seconds: float = 0, **changes: Any) -> PooledMachine:
    row = machine(**changes)
    await store.pools.add(row)
    assert await store.pools.parked(row.id, at=START + seconds * SECOND)
    return row


async def _states(store: Store) -> dict[str, PooledState]:
    return {row.id: row.state for row in await store.pools.machines(NODE)}


def _pool(**changes: Any) -> Pool:
    fields: dict[str, Any] = {
        "template": "base",
        "runtime": "fake",
        "resources": Resources(),
        "min": 2,
        "max": 5,
        "created_at": START,
    }
    return Pool(**{**fields, **changes})


@pytest.mark.anyio
class PoolConformance:
    """Tests of pools and of the machines in them."""

    # Claims

    async def test_a_create_claims_the_machine_that_was_parked_longest(self, store: Store) -> None:
        late, early = await _parked(store, seconds=2), await _parked(store, seconds=1)
        made = creation()
        sandbox = await store.sandboxes.create(replace(made, pool=KEY))
        assert sandbox == replace(made.sandbox, pooled_id=early.id)
        assert await store.sandboxes.find(sandbox.id) == sandbox
        rows = {row.id: row for row in await store.pools.machines(NODE)}
        assert rows[late.id].state is PooledState.PARKED
        assert rows[early.id] == replace(
            early, state=PooledState.BOUND, sandbox_id=sandbox.id, generation=1, parked_at=START + SECOND
        )

    async def test_twenty_creates_at_once_claim_each_of_ten_machines_once(self, store: Store) -> None:
        parked = {(await _parked(store)).id for _ in range(10)}
        made = await asyncio.gather(*(store.sandboxes.create(replace(creation(), pool=KEY)) for _ in range(20)))
        claimed = [sandbox.pooled_id for sandbox in made if sandbox.pooled_id is not None]
        assert len(claimed) == 10
        assert set(claimed) == parked
        owners = {row.id: row.sandbox_id for row in await store.pools.machines(NODE)}
        assert owners == {sandbox.pooled_id: sandbox.id for sandbox in made if sandbox.pooled_id is not None}

    async def test_only_a_machine_of_the_same_kind_and_node_that_waits_is_claimed(self, store: Store) -> None:
        await _parked(store, node_id=OTHER_NODE)
        await _parked(store, key=replace(KEY, template_digest="sha256:" + "1" * 64))
        await _parked(store, key=replace(KEY, runtime="other"))
        await _parked(store, key=replace(KEY, resources=SMALL))
        await store.pools.add(machine())
        retired = await _parked(store)
        assert await store.pools.retire(retired.id)
        sandbox = await store.sandboxes.create(replace(creation(), pool=KEY))
        assert sandbox.pooled_id is None

    async def test_a_create_that_does_not_ask_or_is_refused_claims_nothing(self, store: Store) -> None:
        row = await _parked(store)
        assert (await store.sandboxes.create(creation())).pooled_id is None
        with pytest.raises(LimitExceeded):
            await store.sandboxes.create(replace(creation(), pool=KEY, default_max_sandboxes=1))
        assert await _states(store) == {row.id: PooledState.PARKED}

    async def test_a_claimed_machine_never_returns(self, store: Store) -> None:
        row = await _parked(store)
        made = replace(creation(), pool=KEY)
        await store.sandboxes.create(made)
        assert not await store.pools.retire(row.id)
        assert await store.pools.parked(row.id, at=START), "a late report of its start changes nothing"
        ended, _ = await store.operations.finish(made.operation, failure())
        assert ended.pooled_id == row.id
        await after(store, ended, Kind.DELETE)
        assert await _states(store) == {row.id: PooledState.BOUND}
        assert (await store.sandboxes.create(replace(creation(), pool=KEY))).pooled_id is None

    # Room

    async def test_machines_that_wait_or_start_are_promised_their_memory(self, store: Store) -> None:
        room = Room(memory_mib=3 * 512, machines=99)
        await store.pools.add(machine())
        parked = await _parked(store)
        await _parked(store, node_id=OTHER_NODE)
        await store.sandboxes.create(replace(creation(), room=room))
        with pytest.raises(CapacityUnavailable):
            await store.sandboxes.create(replace(creation(), room=room))
        claimed = await store.sandboxes.create(replace(creation(), room=room, pool=KEY))
        assert claimed.pooled_id == parked.id, "the memory of a parked machine is promised to whoever claims it"
        with pytest.raises(CapacityUnavailable):
            await store.sandboxes.create(replace(creation(), room=room))

    async def test_a_claimed_machine_counts_once(self, store: Store) -> None:
        room = Room(memory_mib=99 * 512, machines=2)
        await _parked(store)
        await store.sandboxes.create(replace(creation(), room=room, pool=KEY))
        await store.sandboxes.create(replace(creation(), room=room, pool=KEY))
        with pytest.raises(CapacityUnavailable) as caught:
            await store.sandboxes.create(replace(creation(), room=room, pool=KEY))
        assert caught.value.details["quota"] == "machines"

    async def test_a_retired_machine_has_its_memory_until_it_is_forgotten(self, store: Store) -> None:
        room = Room(memory_mib=512, machines=9)
        row = await _parked(store)
        assert await store.pools.retire(row.id)
        with pytest.raises(CapacityUnavailable):
            await store.sandboxes.create(replace(creation(), room=room))
        await store.pools.forget(row.id)
        await store.sandboxes.create(replace(creation(), room=room))

    # Machines

    async def test_a_machine_that_was_retired_while_it_started_does_not_wait(self, store: Store) -> None:
        row = machine()
        await store.pools.add(row)
        assert await store.pools.retire(row.id)
        assert await store.pools.retire(row.id), "twice is once"
        assert not await store.pools.parked(row.id, at=START)
        assert await _states(store) == {row.id: PooledState.RETIRED}
        await store.pools.forget(row.id)
        await store.pools.forget(row.id)
        assert not await store.pools.parked(row.id, at=START)
        assert not await store.pools.retire(row.id)
        assert await _states(store) == {}

    async def test_a_row_gives_back_what_was_put_in(self, store: Store) -> None:
        row = machine(key=replace(KEY, resources=Resources(vcpus=3, memory_mib=64, disk_mib=128)), node_epoch=7)
        await store.pools.add(row)
        assert await store.pools.machines(NODE) == [row]
        assert await store.pools.machines(OTHER_NODE) == []

    async def test_a_claim_races_with_a_retirement_and_one_of_them_wins(self, store: Store) -> None:
        for _ in range(10):
            row = await _parked(store)
            retired, sandbox = await asyncio.gather(
                store.pools.retire(row.id), store.sandboxes.create(replace(creation(), pool=KEY))
            )
            assert isinstance(sandbox, Sandbox)
            assert retired == (sandbox.pooled_id is None)

    # Pools

    async def test_setting_a_pool_again_changes_its_size_only(self, store: Store) -> None:
        made = await store.pools.set(_pool(), entry())
        assert made == _pool()
        changed = await store.pools.set(_pool(min=7, max=9, created_at=START + SECOND), entry())
        assert changed == _pool(min=7, max=9)
        await store.pools.set(_pool(resources=SMALL), entry())
        await store.pools.set(_pool(template="other"), entry())
        assert await store.pools.list() == [_pool(resources=SMALL), changed, _pool(template="other")]

    async def test_deleting_takes_all_pools_of_a_template_and_tells_the_audit_log(self, store: Store) -> None:
        for pool in (_pool(), _pool(resources=SMALL), _pool(template="other")):
            await store.pools.set(pool, entry())
        assert await store.pools.delete("base", audit=replace(entry(), action="deletePool")) == 2
        assert await store.pools.list() == [_pool(template="other")]
        assert await store.pools.delete("base", audit=replace(entry(), action="deletePool")) == 0
        page = await store.audit.list(AuditFilter(action="deletePool"), limit=9, cursor=None)
        assert len(page.items) == 1

    async def test_quotas_of_a_project_do_not_count_machines_that_wait(self, store: Store) -> None:
        await _parked(store)
        await store.accounts.change_project(PROJECT, {"max_memory_mib": 512, "max_sandboxes": 1}, entry())
        await a_running(store)

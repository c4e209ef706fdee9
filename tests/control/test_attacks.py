"""What callers try around the lifecycle to get more than they may.  Each test is named after the attack."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from space.control.observations import Observations
from space.control.pools import Pools
from space.control.sandboxes import Sandboxes
from space.core.errors import CapacityUnavailable, LimitExceeded, PermissionDenied
from space.core.ids import PooledId
from space.core.lifecycle import State
from space.core.pool import PooledMachine, PooledState, PoolKey, PoolOrder
from space.core.sandbox import Resources, Sandbox, SandboxSpec
from space.core.snapshot import MAX_NAMED
from space.storage.sql import quota
from space.testing.control_plane import (
    PROJECT,
    ControlPlane,
    NoProcesses,
    a_call,
    audit_entry,
    control_plane,
    principal,
)
from space.testing.rows import new_id
from space.testing.templates import BASE, FakeTemplates

pytestmark = pytest.mark.anyio


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    async with control_plane(tmp_path, max_attempts=1) as plane:
        yield plane


async def limit(plane: ControlPlane, **quotas: Any) -> None:
    await plane.store.accounts.change_project(PROJECT, quotas, audit_entry(plane))


async def a_failed_one(plane: ControlPlane, **changes: Any) -> Sandbox:
    """Return a sandbox whose guest has ended its machine, and that can be recovered."""
    sandbox = await plane.running(**changes)
    await plane.done(plane.sandboxes.snapshot(a_call(), sandbox.id, None))
    plane.node.crash(sandbox.id, is_seen=False)
    await Observations(plane.store, plane.node, plane.clock, NoProcesses()).reconcile()
    return await plane.get(sandbox.id)


async def test_a_project_cannot_get_more_disk_than_its_quota_by_crashing_sandboxes_and_recovering_them(
    plane: ControlPlane,
) -> None:
    await limit(plane, max_disk_mib=Resources().disk_mib)
    crashed = await a_failed_one(plane)
    assert (crashed.state, crashed.restorable) == (State.FAILED, True)
    other = await plane.running()
    with pytest.raises(LimitExceeded, match="disk_mib"):
        await plane.sandboxes.recover(a_call(), crashed.id)
    await plane.ended(await plane.delete(other.id))
    await plane.done(plane.sandboxes.recover(a_call(), crashed.id))


async def test_two_crashed_sandboxes_cannot_be_recovered_at_once_into_the_disk_of_one(plane: ControlPlane) -> None:
    crashed = [await a_failed_one(plane) for _ in range(2)]
    await limit(plane, max_disk_mib=Resources().disk_mib)
    gate = plane.node.hold("ensure")
    first = await plane.sandboxes.recover(a_call(), crashed[0].id)
    with pytest.raises(LimitExceeded, match="disk_mib"):
        await plane.sandboxes.recover(a_call(), crashed[1].id)
    gate.open()
    await plane.ended(first.operation)


async def test_a_token_cannot_fork_what_it_may_not_create(plane: ControlPlane) -> None:
    secret = await plane.running()
    limited = principal(templates=frozenset({"another"}))
    with pytest.raises(PermissionDenied):
        await plane.sandboxes.fork(a_call(who=limited), secret.id)
    assert (await plane.get(secret.id)).held_by is None
    for allowed in (secret.template, secret.template_digest):
        forked = await plane.sandboxes.fork(a_call(who=principal(templates=frozenset({allowed}))), secret.id)
        await plane.ended(forked.changed.operation)
    named = await plane.sandboxes.snapshot(a_call(), secret.id, None)
    await plane.ended(named.operation)
    by_name = principal(templates=frozenset({"base"}))
    spec = SandboxSpec(template=named.operation.snapshot_id or "")
    made, operation = await plane.sandboxes.create(a_call(who=by_name), spec)
    await plane.ended(operation)
    await plane.sandboxes.fork(a_call(who=by_name), made.id)


async def test_a_caller_cannot_fill_the_store_with_snapshots_without_end(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_NAMED < 10_000
    monkeypatch.setattr(quota, "MAX_NAMED", 2)
    sandbox = await plane.running()
    for _ in range(2):
        await plane.done(plane.sandboxes.snapshot(a_call(), sandbox.id, None))
    with pytest.raises(LimitExceeded, match="snapshots"):
        await plane.sandboxes.snapshot(a_call(), sandbox.id, None)
    suspended = await plane.sandboxes.suspend(a_call(), sandbox.id)
    await plane.ended(suspended.operation)
    assert (await plane.get(sandbox.id)).state is State.SUSPENDED, "what nobody keeps by name is not limited"
    (first, *_) = (await plane.sandboxes.list_snapshots(principal())).items
    await plane.sandboxes.delete_snapshot(a_call(), first.id)
    await plane.done(plane.sandboxes.snapshot(a_call(), sandbox.id, None))


async def with_warm_machines(plane: ControlPlane, count: int) -> Sandboxes:
    """Park machines that hold all memory that is left, and return the calls of a server that knows of them."""
    pools = Pools(plane.store, plane.node, FakeTemplates(), plane.clock)
    facts = await plane.node.facts()
    key = PoolKey(template_digest=BASE.digest, runtime="fake", resources=Resources(memory_mib=1024))
    for _ in range(count):
        row = PooledMachine(
            id=PooledId(new_id("mch")),
            node_id=facts.id,
            node_epoch=facts.epoch,
            key=key,
            state=PooledState.STARTING,
            created_at=plane.clock.now(),
        )
        await plane.store.pools.add(row)
        await plane.node.park(PoolOrder(id=row.id, key=key))
        await plane.store.pools.parked(row.id, at=plane.clock.now())
    return Sandboxes(plane.store, plane.node, FakeTemplates(), plane.clock, plane.worker, pools=pools)


async def test_a_project_without_quota_left_cannot_empty_the_pools_of_others(plane: ControlPlane) -> None:
    source = await plane.running()
    await limit(plane, max_sandboxes=1)
    sandboxes = await with_warm_machines(plane, 2)
    plane.node.memory_mib = 0
    assert (await plane.node.facts()).memory_available_mib == 0
    with pytest.raises(LimitExceeded):
        await sandboxes.fork(a_call(), source.id, count=2)
    with pytest.raises((LimitExceeded, CapacityUnavailable)):
        await sandboxes.create(a_call(), SandboxSpec(template="base"))
    assert len(await plane.node.parked()) == 2

"""The calls on sandboxes, as the server makes them."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from space.core.account import IdempotencyRef
from space.core.errors import (
    CapacityUnavailable,
    InvalidTransition,
    LimitExceeded,
    NotFound,
    PermissionDenied,
    Unsupported,
)
from space.core.lifecycle import State
from space.core.operation import Status
from space.core.sandbox import AutoLifecycle, Resources, SandboxSpec
from space.core.store import AuditFilter, SandboxFilter
from space.testing.clock import FakeClock
from space.testing.control_plane import OTHER_PROJECT, ControlPlane, a_call, control_plane, principal
from space.testing.node import FakeNode
from space.testing.templates import BASE

pytestmark = pytest.mark.anyio
STRANGER = principal(OTHER_PROJECT)


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    async with control_plane(tmp_path) as plane:
        yield plane


async def test_a_create_answers_with_what_the_store_holds(tmp_path: Path) -> None:
    node = FakeNode()
    node.gate = asyncio.Event()
    async with control_plane(tmp_path, node=node) as plane:
        sandbox, operation = await plane.create(
            env={"A": "b"}, metadata={"k": "v"}, resources=Resources(memory_mib=64), template="base:latest"
        )
        assert await plane.get(sandbox.id) == sandbox
        assert await plane.operations.get(principal(), operation.id) == operation
        assert (sandbox.shown_state, sandbox.held_by, sandbox.generation) == ("creating", operation.id, 1)
        assert (sandbox.template, sandbox.template_digest) == ("base:latest", BASE.digest)
        assert (sandbox.runtime, sandbox.node_id, sandbox.created_by) == ("fake", node.id, principal().id)
        node.gate.set()


async def test_a_lifetime_becomes_an_expiry(plane: ControlPlane) -> None:
    sandbox, _ = await plane.create(auto_lifecycle=AutoLifecycle(max_lifetime_seconds=60))
    assert sandbox.expires_at == sandbox.created_at + timedelta(seconds=60)


async def test_what_cannot_be_had_is_refused_before_anything_is_recorded(plane: ControlPlane) -> None:
    with pytest.raises(NotFound) as caught:
        await plane.create(template="no-such-template")
    assert caught.value.details["field"] == "template"
    with pytest.raises(Unsupported):
        await plane.create(runtime="firecracker")
    with pytest.raises(CapacityUnavailable):
        await plane.create(resources=Resources(memory_mib=1 << 30))
    assert plane.store._reader.rows("SELECT 1 FROM sandboxes UNION ALL SELECT 1 FROM operations") == []


async def test_a_token_bound_to_templates_may_use_only_those(plane: ControlPlane) -> None:
    spec = SandboxSpec(template="base")
    for allowed in ("base", BASE.digest):
        await plane.sandboxes.create(a_call(who=principal(templates=frozenset({allowed}))), spec)
    with pytest.raises(PermissionDenied):
        await plane.sandboxes.create(a_call(who=principal(templates=frozenset({"other"}))), spec)


async def test_another_projects_sandbox_is_not_found_by_any_call(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    theirs = a_call(who=STRANGER)
    for call in (
        plane.sandboxes.get(STRANGER, sandbox.id),
        plane.sandboxes.delete(theirs, sandbox.id),
        plane.sandboxes.update(theirs, sandbox.id, metadata={}, auto_lifecycle=None),
        plane.sandboxes.extend(theirs, sandbox.id, seconds=1),
        plane.sandboxes.events(STRANGER, sandbox.id, after=0, limit=1),
    ):
        with pytest.raises(NotFound):
            await call
    page = await plane.sandboxes.list(STRANGER, SandboxFilter(), limit=10, cursor=None)
    assert (page.items, page.next_cursor) == ([], None)
    assert (await plane.get(sandbox.id)).state is State.RUNNING


async def test_deleted_sandboxes_stay_readable_and_deleting_them_again_succeeds(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    await plane.ended(await plane.delete(sandbox.id))
    row = await plane.get(sandbox.id)
    assert (row.shown_state, row.deleted_at is not None) == ("deleted", True)
    again = await plane.delete(sandbox.id)
    assert again.status is Status.SUCCEEDED
    with pytest.raises(InvalidTransition):
        await plane.sandboxes.update(a_call(), sandbox.id, metadata={}, auto_lifecycle=None)


async def test_the_default_quota_of_the_operator_holds(plane: ControlPlane) -> None:
    plane.sandboxes._default_quota_sandboxes = 2
    results = await asyncio.gather(*(plane.create() for _ in range(6)), return_exceptions=True)
    assert sum(isinstance(result, LimitExceeded) for result in results) == 4
    assert len([row for row in results if isinstance(row, tuple)]) == 2


async def test_every_change_is_audited_with_its_target(plane: ControlPlane) -> None:
    sandbox = await plane.running()
    await plane.sandboxes.update(a_call("updateSandbox"), sandbox.id, metadata={"a": "b"}, auto_lifecycle=None)
    await plane.sandboxes.extend(a_call("extendSandbox"), sandbox.id, seconds=5)
    await plane.delete(sandbox.id)
    page = await plane.store.audit.list(AuditFilter(target=sandbox.id), limit=10, cursor=None)
    assert [(entry.action, entry.outcome, entry.principal) for entry in page.items] == [
        (action, "ok", principal().id)
        for action in ("deleteSandbox", "extendSandbox", "updateSandbox", "createSandbox")
    ]


async def test_an_idempotency_key_is_tied_to_the_operation_in_the_same_transaction(plane: ControlPlane) -> None:
    ref = IdempotencyRef(
        principal_id=principal().id, key="k-1", method_path="POST /v1/sandboxes", request_hash=b"\0" * 32
    )
    _, operation = await plane.sandboxes.create(a_call(idempotency=ref), SandboxSpec(template="base"))
    kept = await plane.store.idempotency.find(ref, now=plane.clock.now())
    assert kept is not None
    assert (kept.target_id, kept.status) == (operation.id, None)
    again = IdempotencyRef(principal_id=principal().id, key="k-2", method_path="DELETE", request_hash=b"\0" * 32)
    deletion = await plane.sandboxes.delete(a_call("deleteSandbox", idempotency=again), operation.sandbox_id)
    kept = await plane.store.idempotency.find(again, now=plane.clock.now())
    assert kept is not None
    assert kept.target_id == deletion.id


async def test_waiting_for_an_event_returns_when_there_is_one(tmp_path: Path) -> None:
    node = FakeNode()
    node.gate = asyncio.Event()
    async with control_plane(tmp_path, node=node) as plane:
        sandbox, _ = await plane.create()
        async with asyncio.timeout(5):
            await plane.sandboxes.wait_event(sandbox.id, after=0, seconds=60)  # there is one already
            waiting = asyncio.create_task(plane.sandboxes.wait_event(sandbox.id, after=1, seconds=60))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            node.gate.set()
            await waiting
        assert len(await plane.sandboxes.events(principal(), sandbox.id, after=1, limit=9)) == 1
        await plane.sandboxes.wait_event(sandbox.id, after=2, seconds=0.01)


async def test_extending_counts_from_now(tmp_path: Path) -> None:
    clock = FakeClock()
    async with control_plane(tmp_path, clock=clock) as plane:
        sandbox = await plane.running(auto_lifecycle=AutoLifecycle(max_lifetime_seconds=60))
        clock.advance(30)
        extended = await plane.sandboxes.extend(a_call(), sandbox.id, seconds=120)
        assert extended.expires_at == sandbox.created_at + timedelta(seconds=150)


async def test_reads_give_the_same_object_until_the_row_changes(plane: ControlPlane) -> None:
    """What the server's cache of encoded rows stands on."""
    sandbox = await plane.running()
    first = await plane.get(sandbox.id)
    page = await plane.sandboxes.list(principal(), SandboxFilter(), limit=1, cursor=None)
    assert page.items[0] is first
    assert await plane.get(sandbox.id) is first
    changed = await plane.sandboxes.update(a_call(), sandbox.id, metadata={"a": "b"}, auto_lifecycle=None)
    assert changed.version == first.version + 1
    assert await plane.get(sandbox.id) == changed

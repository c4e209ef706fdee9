"""Forks: children are recorded with the fork and start, or fail, with it."""

import asyncio
from dataclasses import replace

import pytest

from space.core.errors import CapacityUnavailable, FailedPrecondition, LimitExceeded, NotFound, SpaceError
from space.core.lifecycle import Admission, Kind, State
from space.core.operation import Operation, Status
from space.core.sandbox import Sandbox
from space.core.snapshot import SnapshotState
from space.core.store import Fork, Forked, Outcome, Room, Store
from space.testing.conformance.store.made import SECOND, a_running, after, failure
from space.testing.rows import KEY, NODE, OTHER_PROJECT, PROJECT, START, change, entry, fork, lease, machine, succeed

LATER = START + 60 * SECOND


async def _operations(store: Store, request: Fork) -> list[Operation]:
    found = [await store.operations.find(child.operation.id) for child in request.children]
    return [operation for operation in found if operation is not None]


async def _claimed(store: Store) -> list[str]:
    return [row.id for row in await store.operations.claim(lease("other", at=LATER), now=LATER, limit=99)]


def _sandboxes(forked: Forked) -> list[Sandbox]:
    return [child for child in forked.children if isinstance(child, Sandbox)]


@pytest.mark.anyio
class ForkConformance:
    """Tests of forks."""

    async def test_children_start_from_the_forks_snapshot_once_it_is_durable(self, store: Store) -> None:
        source = await a_running(store)
        request = fork(source, 3)
        forked = await store.sandboxes.fork(request)
        made = forked.changed.operation
        assert (forked.changed.admission, made.kind, made.status) == (Admission.START, Kind.FORK, Status.RUNNING)
        assert [child.shown_state for child in _sandboxes(forked)] == ["creating"] * 3
        assert [await store.sandboxes.find(child.id) for child in _sandboxes(forked)] == list(forked.children)
        assert [(row.status, row.waits_for) for row in await _operations(store, request)] == [
            (Status.QUEUED, made.id)
        ] * 3
        ended = await succeed(store, made, at=START + SECOND)
        assert (ended.state, ended.snapshot_id, ended.restorable) == (State.RUNNING, made.snapshot_id, True)
        rows = await _operations(store, request)
        assert [(row.waits_for, row.snapshot_id) for row in rows] == [(None, made.snapshot_id)] * 3
        at = START + SECOND
        claimed = await store.operations.claim(lease("other", at=at), now=at, limit=99)
        assert {row.id for row in claimed} == {row.id for row in rows}, "due at once"
        for row in claimed:
            child = await succeed(store, row)
            assert (child.state, child.generation) == (State.RUNNING, 1)
            assert (child.snapshot_id, child.restorable) == (made.snapshot_id, True), "it can return to its beginning"

    async def test_nobody_may_claim_a_child_before_its_fork_has_ended(self, store: Store) -> None:
        source = await a_running(store)
        request = fork(source, 3)
        forked = await store.sandboxes.fork(request)
        assert await _claimed(store) == [forked.changed.operation.id]
        assert await _claimed(store) == []

    async def test_children_of_a_suspended_sandbox_start_from_its_own_snapshot(self, store: Store) -> None:
        source = await after(store, await a_running(store), Kind.SUSPEND)
        request = fork(source, 2)
        forked = await store.sandboxes.fork(request)
        assert forked.changed.operation.snapshot_id == source.snapshot_id
        assert request.change.snapshot is not None
        assert await store.snapshots.find(request.change.snapshot.id) is None
        ended = await succeed(store, forked.changed.operation)
        assert (ended.state, ended.snapshot_id) == (State.SUSPENDED, source.snapshot_id)
        assert [row.snapshot_id for row in await _operations(store, request)] == [source.snapshot_id] * 2

    async def test_children_fail_with_the_error_of_their_fork(self, store: Store) -> None:
        source = await a_running(store)
        request = fork(source, 2)
        forked = await store.sandboxes.fork(request)
        outcome = failure(1)
        ended, _ = await store.operations.finish(forked.changed.operation, outcome)
        assert (ended.state, ended.restorable) == (State.RUNNING, False)
        for child, operation in zip(_sandboxes(forked), await _operations(store, request), strict=True):
            row = await store.sandboxes.find(child.id)
            assert row is not None
            assert (row.state, row.reason, row.held_by, row.restorable) == (State.FAILED, "fork_failed", None, False)
            assert (operation.status, operation.error) == (Status.FAILED, outcome.error)
            assert operation.finished_at == START + SECOND
            events = await store.events.read(child.id, after=0, limit=9)
            assert [(event.seq, event.type) for event in events] == [(1, "sandbox.created"), (2, "operation.failed")]
            assert events[1].data["reason"] == "fork_failed"
        assert await _claimed(store) == []

    async def test_deleting_the_source_fails_the_children_that_wait(self, store: Store) -> None:
        source = await a_running(store)
        request = fork(source, 2)
        forked = await store.sandboxes.fork(request)
        deleting = await store.sandboxes.change(change(source, Kind.DELETE))
        assert deleting.cancelled == forked.changed.operation.id
        for child, operation in zip(_sandboxes(forked), await _operations(store, request), strict=True):
            row = await store.sandboxes.find(child.id)
            assert row is not None
            assert (row.state, row.reason) == (State.FAILED, "fork_failed")
            assert operation.status is Status.FAILED
            assert operation.error is not None
            assert operation.error["code"] == "failed_precondition"
        assert await _claimed(store) == [deleting.operation.id]

    async def test_a_source_whose_machine_died_fails_its_children(self, store: Store) -> None:
        source = await a_running(store)
        forked = await store.sandboxes.fork(fork(source, 1))
        await store.sandboxes.observe_exit(source.id, 1, reason="oom", at=START, data={})
        _, finished = await store.operations.finish(
            forked.changed.operation, Outcome(status=Status.SUCCEEDED, at=START)
        )
        assert finished.status is Status.FAILED
        (child,) = _sandboxes(forked)
        row = await store.sandboxes.find(child.id)
        assert row is not None
        assert (row.state, row.reason) == (State.FAILED, "fork_failed")

    async def test_a_child_that_was_deleted_while_it_waited_is_not_revived(self, store: Store) -> None:
        source = await a_running(store)
        request = fork(source, 2)
        forked = await store.sandboxes.fork(request)
        gone, kept = _sandboxes(forked)
        deleting = await store.sandboxes.change(change(gone, Kind.DELETE))
        assert deleting.cancelled == request.children[0].operation.id
        await succeed(store, forked.changed.operation)
        first, second = await _operations(store, request)
        assert (first.status, second.status) == (Status.CANCELLED, Status.QUEUED)
        assert set(await _claimed(store)) == {second.id, deleting.operation.id}
        assert (await succeed(store, (await store.sandboxes.change(change(gone, Kind.DELETE))).operation)) is not None
        assert (await store.sandboxes.find(kept.id)) == kept

    @pytest.mark.parametrize("limited", ["quota", "room"])
    async def test_a_limit_costs_only_the_children_that_are_too_many(self, store: Store, limited: str) -> None:
        source = await a_running(store)
        if limited == "quota":
            await store.accounts.change_project(PROJECT, {"max_sandboxes": 4}, entry())
            forked = await store.sandboxes.fork(fork(source, 5))
        else:
            forked = await store.sandboxes.fork(fork(source, 5, room=Room(memory_mib=4 * 512, machines=99)))
        error = {"quota": LimitExceeded, "room": CapacityUnavailable}[limited]
        assert [type(child) for child in forked.children] == [Sandbox] * 3 + [error] * 2
        await succeed(store, forked.changed.operation)
        assert len(await _claimed(store)) == 3
        assert len(await store.sandboxes.desired(NODE)) == 4

    async def test_a_fork_without_a_single_child_did_not_happen(self, store: Store) -> None:
        source = await a_running(store)
        request = fork(source, 2, default_max_sandboxes=1)
        with pytest.raises(LimitExceeded) as caught:
            await store.sandboxes.fork(request)
        assert caught.value.details["quota"] == "sandboxes"
        assert await store.sandboxes.find(source.id) == source
        assert await store.operations.find(request.change.operation_id) is None
        assert request.change.snapshot is not None
        assert await store.snapshots.find(request.change.snapshot.id) is None

    async def test_what_cannot_be_forked_records_no_child(self, store: Store) -> None:
        source = await a_running(store)
        await store.sandboxes.observe_exit(source.id, 1, reason="oom", at=START, data={})
        request = fork(source, 2)
        with pytest.raises(FailedPrecondition):
            await store.sandboxes.fork(request)
        foreign = replace(request, change=replace(request.change, project_id=OTHER_PROJECT))
        with pytest.raises(NotFound):
            await store.sandboxes.fork(foreign)
        for child in request.children:
            assert await store.sandboxes.find(child.sandbox.id) is None

    async def test_a_child_never_claims_a_parked_machine(self, store: Store) -> None:
        source = await a_running(store)
        parked = machine()
        await store.pools.add(parked)
        assert await store.pools.parked(parked.id, at=START)
        forked = await store.sandboxes.fork(fork(source, 2, pool=KEY))
        assert [child.pooled_id for child in _sandboxes(forked)] == [None, None]

    async def test_concurrent_forks_take_turns(self, store: Store) -> None:
        source = await a_running(store)
        results = await asyncio.gather(
            *(store.sandboxes.fork(fork(source, 2, owner=str(n))) for n in range(5)), return_exceptions=True
        )
        assert sum(isinstance(result, Forked) for result in results) == 1
        assert all(isinstance(result, Forked | SpaceError) for result in results)
        assert len(await store.sandboxes.desired(NODE)) == 3

    async def test_a_forks_snapshot_is_kept_while_a_child_or_the_source_has_no_later_one(self, store: Store) -> None:
        source = await a_running(store)
        request = fork(source, 2)
        forked = await store.sandboxes.fork(request)
        snapshot_id = forked.changed.operation.snapshot_id
        source = await succeed(store, forked.changed.operation)
        source = await after(store, source, Kind.SUSPEND)
        assert await store.snapshots.unwanted(limit=9) == [], "two children are still to be started"
        claimed = await store.operations.claim(lease("o", at=LATER), now=LATER, limit=9)
        children = [await succeed(store, row) for row in claimed]
        assert await store.snapshots.unwanted(limit=9) == []
        await after(store, children[0], Kind.DELETE)
        assert await store.snapshots.unwanted(limit=9) == []
        await after(store, children[1], Kind.SUSPEND)
        assert [row.id for row in await store.snapshots.unwanted(limit=9)] == [snapshot_id]

    async def test_the_snapshot_of_a_failed_fork_is_left_to_the_collector(self, store: Store) -> None:
        source = await a_running(store)
        forked = await store.sandboxes.fork(fork(source, 1))
        assert await store.snapshots.unwanted(limit=9) == []
        await store.operations.finish(forked.changed.operation, failure())
        (snapshot,) = await store.snapshots.unwanted(limit=9)
        assert (snapshot.id, snapshot.state) == (forked.changed.operation.snapshot_id, SnapshotState.DELETING)

"""Pause, suspend, wake and recover: where a sandbox rests, and the snapshot that it rests in."""

from dataclasses import replace
from datetime import timedelta

import pytest

from space.core.errors import CapacityUnavailable, FailedPrecondition, InvalidTransition, LimitExceeded, StaleVersion
from space.core.lifecycle import Admission, Kind, State
from space.core.operation import Status
from space.core.sandbox import AutoLifecycle, OnIdle
from space.core.snapshot import SnapshotState
from space.core.store import Outcome, Room, Store
from space.testing.conformance.store.made import SECOND, a_running, after, failure, ids, success
from space.testing.rows import NODE, PROJECT, START, change, creation, entry, publication, succeed


@pytest.mark.anyio
class LifecycleConformance:
    """Tests of what each kind of operation leaves behind."""

    async def test_a_paused_machine_is_woken_as_the_same_one(self, store: Store) -> None:
        sandbox = await a_running(store)
        paused = await after(store, sandbox, Kind.PAUSE, seconds=1)
        assert (paused.state, paused.generation, paused.restorable) == (State.PAUSED, 1, False)
        waking = await store.sandboxes.change(change(paused, Kind.WAKE))
        assert (waking.operation.snapshot_id, waking.sandbox.shown_state) == (None, "waking")
        woken = await succeed(store, waking.operation, at=START + 9 * SECOND)
        assert (woken.state, woken.generation) == (State.RUNNING, 1)
        assert woken.started_at == sandbox.started_at
        assert woken.last_active_at == START + 9 * SECOND, "or it would be idle again at once"

    async def test_a_suspended_sandbox_rests_in_a_ready_snapshot_and_wakes_from_it_as_a_new_machine(
        self, store: Store
    ) -> None:
        sandbox = await a_running(store)
        suspending = await store.sandboxes.change(change(sandbox, Kind.SUSPEND, request={"quiet_since": "x"}))
        snapshot_id = suspending.operation.snapshot_id
        assert snapshot_id is not None
        assert suspending.operation.request == {"quiet_since": "x"}
        made = await store.snapshots.find(snapshot_id)
        assert made is not None
        assert (made.state, made.sandbox_id, made.generation) == (SnapshotState.UPLOADING, sandbox.id, 1)
        assert suspending.sandbox.shown_state == "suspending"
        suspended = await succeed(store, suspending.operation, at=START + SECOND)
        assert (suspended.state, suspended.restorable, suspended.snapshot_id) == (State.SUSPENDED, True, snapshot_id)
        ready = await store.snapshots.find(snapshot_id)
        published = publication(snapshot_id)
        assert ready is not None
        assert (ready.state, ready.manifest, ready.ready_at) == (
            SnapshotState.READY,
            published.manifest,
            START + SECOND,
        )
        assert (ready.bytes_read, ready.bytes_new, ready.bytes_uploaded) == (300, 20, 1)
        waking = await store.sandboxes.change(change(suspended, Kind.WAKE))
        assert waking.operation.snapshot_id == snapshot_id
        woken = await succeed(store, waking.operation, at=START + 2 * SECOND)
        assert (woken.state, woken.generation, woken.started_at) == (State.RUNNING, 2, START + 2 * SECOND)
        assert (woken.restorable, woken.snapshot_id) == (True, snapshot_id)

    async def test_a_suspend_does_not_succeed_before_its_snapshot_is_published(self, store: Store) -> None:
        sandbox = await a_running(store)
        for kind in (Kind.SUSPEND, Kind.SNAPSHOT, Kind.FORK):
            changed = await store.sandboxes.change(change(sandbox, kind))
            with pytest.raises(AssertionError, match="published"):
                await store.operations.finish(changed.operation, success())
            snapshot_id = changed.operation.snapshot_id
            assert snapshot_id is not None
            published = replace(success(), published=publication(snapshot_id))
            with pytest.raises(AssertionError, match="pinned"):
                await store.operations.finish(changed.operation, published)
            row = await store.sandboxes.find(sandbox.id)
            assert row is not None
            assert (row.state, row.held_kind, row.restorable) == (State.RUNNING, kind, False)
            await store.operations.finish(changed.operation, failure())

    async def test_a_snapshot_is_published_by_its_own_operation_only(self, store: Store) -> None:
        one, two = await a_running(store), await a_running(store)
        first = await store.sandboxes.change(change(one, Kind.SUSPEND))
        second = await store.sandboxes.change(change(two, Kind.SUSPEND))
        assert first.operation.snapshot_id is not None
        await store.snapshots.pin(first.operation.snapshot_id, bytes(32), now=START)
        foreign = replace(success(), published=publication(first.operation.snapshot_id))
        with pytest.raises(AssertionError):
            await store.operations.finish(second.operation, foreign)
        await store.sandboxes.change(change(one, Kind.DELETE))
        with pytest.raises(StaleVersion):
            await store.operations.finish(first.operation, foreign)
        row = await store.snapshots.find(first.operation.snapshot_id)
        assert row is not None
        assert row.state is SnapshotState.UPLOADING

    @pytest.mark.parametrize("rests", [State.RUNNING, State.PAUSED])
    async def test_a_failed_suspend_leaves_the_sandbox_as_it_was(self, store: Store, rests: State) -> None:
        sandbox = await a_running(store)
        if rests is State.PAUSED:
            sandbox = await after(store, sandbox, Kind.PAUSE)
        changed = await store.sandboxes.change(change(sandbox, Kind.SUSPEND))
        ended, finished = await store.operations.finish(changed.operation, failure())
        assert finished.status is Status.FAILED
        assert replace(ended, version=0) == replace(sandbox, version=0)

    async def test_a_failed_wake_leaves_it_suspended_and_the_next_is_a_newer_machine(self, store: Store) -> None:
        suspended = await after(store, await a_running(store), Kind.SUSPEND)
        changed = await store.sandboxes.change(change(suspended, Kind.WAKE))
        ended, _ = await store.operations.finish(changed.operation, failure(reason="boot_failed"))
        assert (ended.state, ended.generation, ended.reason) == (State.SUSPENDED, 2, None)
        assert ended.snapshot_id == suspended.snapshot_id
        woken = await after(store, ended, Kind.WAKE)
        assert (woken.state, woken.generation) == (State.RUNNING, 3)

    async def test_every_other_success_leaves_the_sandbox_where_it_rests(self, store: Store) -> None:
        sandbox = await a_running(store)
        for rests, kinds in ((State.RUNNING, ()), (State.PAUSED, (Kind.PAUSE,)), (State.SUSPENDED, (Kind.SUSPEND,))):
            sandbox = await after(store, sandbox, *kinds)
            for kind in (Kind.SNAPSHOT, Kind.FORK):
                ended = await after(store, sandbox, kind)
                assert (ended.state, ended.generation) == (rests, 1)

    async def test_the_newest_moment_is_what_a_sandbox_can_return_to(self, store: Store) -> None:
        sandbox = await a_running(store)
        seen = [sandbox.snapshot_id]
        for kind in (Kind.SNAPSHOT, Kind.FORK, Kind.SUSPEND, Kind.WAKE, Kind.SNAPSHOT):
            sandbox = await after(store, sandbox, kind)
            assert sandbox.restorable
            seen.append(sandbox.snapshot_id)
        assert len(set(seen)) == 5
        assert seen[3] == seen[4], "a wake makes none"

    async def test_a_snapshot_of_a_suspended_sandbox_is_the_same_moment_and_needs_the_same_chunks(
        self, store: Store
    ) -> None:
        sandbox = await a_running(store)
        suspending = await store.sandboxes.change(change(sandbox, Kind.SUSPEND))
        chunks = b"a" * 32 + b"b" * 32
        suspended = await succeed(store, suspending.operation, chunks=chunks)
        changed = await store.sandboxes.change(change(suspended, Kind.SNAPSHOT))
        assert changed.operation.snapshot_id is not None
        published = publication(changed.operation.snapshot_id)  # nothing was pinned for it: it needs what the other has
        ended, _ = await store.operations.finish(changed.operation, replace(success(), published=published))
        assert ended.snapshot_id == suspended.snapshot_id
        await after(store, ended, Kind.DELETE)
        for snapshot in await store.snapshots.unwanted(limit=9):
            assert snapshot.id == suspended.snapshot_id
            await store.snapshots.forget(snapshot.id)
        pinned = await store.snapshots.begin_collection(PROJECT, until=START + SECOND, now=START)
        assert pinned == {b"a" * 32, b"b" * 32}

    # Recovering

    async def test_a_lost_machine_keeps_its_durable_moment_and_is_recovered_from_it(self, store: Store) -> None:
        sandbox = await after(store, await a_running(store), Kind.SNAPSHOT)
        assert await store.sandboxes.observe_exit(sandbox.id, 1, reason="oom", at=START, data={})
        failed = await store.sandboxes.find(sandbox.id)
        assert failed is not None
        assert (failed.state, failed.reason, failed.restorable) == (State.FAILED, "oom", True)
        changed = await store.sandboxes.change(change(sandbox, Kind.RECOVER))
        assert (changed.operation.snapshot_id, changed.sandbox.shown_state) == (sandbox.snapshot_id, "recovering")
        recovered = await succeed(store, changed.operation)
        assert (recovered.state, recovered.reason, recovered.generation) == (State.RUNNING, None, 2)
        assert recovered.restorable

    async def test_what_was_never_saved_cannot_be_recovered(self, store: Store) -> None:
        sandbox = await a_running(store)
        await store.sandboxes.observe_exit(sandbox.id, 1, reason="oom", at=START, data={})
        before = await store.sandboxes.find(sandbox.id)
        with pytest.raises(FailedPrecondition, match="no durable state"):
            await store.sandboxes.change(change(sandbox, Kind.RECOVER))
        assert await store.sandboxes.find(sandbox.id) == before

    async def test_a_failed_recover_leaves_it_failed_and_recoverable(self, store: Store) -> None:
        sandbox = await after(store, await a_running(store), Kind.SNAPSHOT)
        await store.sandboxes.observe_exit(sandbox.id, 1, reason="oom", at=START, data={})
        changed = await store.sandboxes.change(change(sandbox, Kind.RECOVER))
        ended, _ = await store.operations.finish(changed.operation, failure(reason="boot_failed"))
        assert (ended.state, ended.reason, ended.restorable) == (State.FAILED, "oom", True)
        assert (await after(store, ended, Kind.RECOVER)).generation == 3

    async def test_a_deleted_sandbox_has_nothing_to_return_to(self, store: Store) -> None:
        suspended = await after(store, await a_running(store), Kind.SUSPEND)
        deleted = await after(store, suspended, Kind.DELETE)
        assert (deleted.state, deleted.restorable, deleted.snapshot_id) == (State.DELETED, False, None)
        with pytest.raises(InvalidTransition):
            await store.sandboxes.change(change(suspended, Kind.WAKE))

    async def test_a_delete_cancels_a_suspend_and_leaves_its_snapshot_to_the_collector(self, store: Store) -> None:
        sandbox = await a_running(store)
        suspending = await store.sandboxes.change(change(sandbox, Kind.SUSPEND))
        deleting = await store.sandboxes.change(change(sandbox, Kind.DELETE))
        assert deleting.cancelled == suspending.operation.id
        (unwanted,) = await store.snapshots.unwanted(limit=9)
        assert unwanted.id == suspending.operation.snapshot_id

    # Room and quotas

    async def test_a_suspended_sandbox_gives_its_room_back_and_asks_for_it_when_it_wakes(self, store: Store) -> None:
        room = Room(memory_mib=512, machines=9)
        suspended = await after(store, await a_running(store), Kind.SUSPEND)
        other = replace(creation(), room=room)
        await store.sandboxes.create(other)
        with pytest.raises(CapacityUnavailable):
            await store.sandboxes.change(change(suspended, Kind.WAKE, room=room))
        row = await store.sandboxes.find(suspended.id)
        assert row == suspended, "a refusal changes nothing"
        deleting = await store.sandboxes.change(change(other.sandbox, Kind.DELETE))
        await succeed(store, deleting.operation)
        await store.sandboxes.change(change(suspended, Kind.WAKE, room=room))
        with pytest.raises(CapacityUnavailable):  # the one that wakes is promised it
            await store.sandboxes.create(replace(creation(), room=room))

    async def test_waking_does_not_get_round_a_quota(self, store: Store) -> None:
        await store.accounts.change_project(PROJECT, {"max_memory_mib": 512}, entry())
        suspended = await after(store, await a_running(store), Kind.SUSPEND)
        second = await a_running(store)
        with pytest.raises(LimitExceeded) as caught:
            await store.sandboxes.change(change(suspended, Kind.WAKE))
        assert caught.value.details["quota"] == "memory_mib"
        await after(store, second, Kind.PAUSE)
        with pytest.raises(LimitExceeded):  # its memory is still on its node
            await store.sandboxes.change(change(suspended, Kind.WAKE))

    # What is shown and wanted

    async def test_users_and_nodes_see_every_state(self, store: Store) -> None:
        sandbox = await a_running(store)
        for kind, meanwhile, rests in (
            (Kind.PAUSE, "pausing", "paused"),
            (Kind.WAKE, "waking", "running"),
            (Kind.SNAPSHOT, "running", "running"),
            (Kind.SUSPEND, "suspending", "suspended"),
            (Kind.FORK, "suspended", "suspended"),
            (Kind.WAKE, "waking", "running"),
        ):
            changed = await store.sandboxes.change(change(sandbox, kind))
            assert await ids(store, state=meanwhile) == [sandbox.id]
            held = changed.sandbox
            assert await store.sandboxes.desired(NODE) == {sandbox.id: (held.generation, held.state, kind)}
            sandbox = await succeed(store, changed.operation)
            assert await ids(store, state=rests) == [sandbox.id]
            assert await store.sandboxes.desired(NODE) == {sandbox.id: (sandbox.generation, State(rests), None)}

    async def test_a_second_request_joins_and_a_third_is_satisfied(self, store: Store) -> None:
        sandbox = await a_running(store)
        first = await store.sandboxes.change(change(sandbox, Kind.SUSPEND))
        request = change(sandbox, Kind.SUSPEND)
        second = await store.sandboxes.change(request)
        assert (second.admission, second.operation.id) == (Admission.JOIN, first.operation.id)
        await succeed(store, first.operation)
        third = await store.sandboxes.change(change(sandbox, Kind.SUSPEND))
        assert (third.admission, third.operation.status) == (Admission.SATISFIED, Status.SUCCEEDED)
        assert request.snapshot is not None
        assert await store.snapshots.find(request.snapshot.id) is None, "only what starts makes a snapshot"

    # Idleness

    @pytest.mark.parametrize("on_idle", OnIdle)
    async def test_idleness_leads_on_from_each_state_as_far_as_it_says(self, store: Store, on_idle: OnIdle) -> None:
        lifecycle = AutoLifecycle(idle_seconds=5, on_idle=on_idle)
        running = await a_running(store, auto_lifecycle=lifecycle)
        paused = await after(store, await a_running(store, auto_lifecycle=lifecycle), Kind.PAUSE)
        suspended = await after(store, await a_running(store, auto_lifecycle=lifecycle), Kind.SUSPEND)
        leads = {
            OnIdle.NONE: [],
            OnIdle.PAUSE: [running],
            OnIdle.SUSPEND: [running, paused],
            OnIdle.DELETE: [running, paused, suspended],
        }
        assert await store.sandboxes.overdue(START + 4.9 * SECOND, limit=9) == []
        found = await store.sandboxes.overdue(START + 5 * SECOND, limit=9)
        assert sorted(found) == sorted((sandbox.id, PROJECT, "idle") for sandbox in leads[on_idle])
        kind = Kind(on_idle) if on_idle is not OnIdle.NONE else Kind.SUSPEND
        for sandbox in (running, paused, suspended):
            request = change(sandbox, kind, at=START + 5 * SECOND, overdue="idle")
            if sandbox in leads[on_idle]:
                assert (await store.sandboxes.change(request)).admission is Admission.START
            else:
                with pytest.raises(StaleVersion):
                    await store.sandboxes.change(request)
        assert await store.sandboxes.overdue(START + 5 * SECOND, limit=9) == []

    async def test_what_was_used_extended_or_is_changing_is_not_overdue_any_more(self, store: Store) -> None:
        lifecycle = AutoLifecycle(idle_seconds=5, on_idle=OnIdle.SUSPEND)
        used, changed, held = [await a_running(store, auto_lifecycle=lifecycle) for _ in range(3)]
        later = START + timedelta(seconds=6)
        assert len(await store.sandboxes.overdue(later, limit=9)) == 3
        await store.sandboxes.touch({used.id: START + 2 * SECOND})
        await store.sandboxes.update(
            changed.id, PROJECT, at=START, audit=entry(), auto_lifecycle=replace(lifecycle, on_idle=OnIdle.NONE)
        )
        await store.sandboxes.change(change(held, Kind.PAUSE))
        assert await store.sandboxes.overdue(later, limit=9) == []
        for sandbox in (used, changed, held):
            with pytest.raises(StaleVersion):
                await store.sandboxes.change(change(sandbox, Kind.SUSPEND, at=later, overdue="idle"))
        assert await store.sandboxes.overdue(START + 7 * SECOND, limit=9) == [(used.id, PROJECT, "idle")]

    async def test_an_idle_sandbox_is_never_deleted_where_it_was_to_be_suspended(self, store: Store) -> None:
        sandbox = await a_running(store, auto_lifecycle=AutoLifecycle(idle_seconds=5, on_idle=OnIdle.SUSPEND))
        with pytest.raises(StaleVersion):
            await store.sandboxes.change(change(sandbox, Kind.DELETE, at=START + 9 * SECOND, overdue="idle"))

    async def test_steps_add_to_what_earlier_ones_found(self, store: Store) -> None:
        sandbox = await a_running(store)
        changed = await store.sandboxes.change(change(sandbox, Kind.SUSPEND))
        lease = change(sandbox, Kind.SUSPEND).lease
        one = await store.operations.finish_step(changed.operation, "a", lease=lease, progress={"x": 1, "y": [2]})
        two = await store.operations.finish_step(one, "b", lease=lease, progress={"y": None})
        three = await store.operations.finish_step(two, "c", lease=lease)
        assert three.progress == {"x": 1, "y": None}
        assert await store.operations.find(three.id) == three

    async def test_a_moment_that_was_saved_before_its_machine_died_is_not_lost_with_it(self, store: Store) -> None:
        for kind, status in (
            (Kind.SUSPEND, Status.FAILED),
            (Kind.SNAPSHOT, Status.SUCCEEDED),
            (Kind.FORK, Status.SUCCEEDED),
        ):
            sandbox = await a_running(store)
            changed = await store.sandboxes.change(change(sandbox, kind))
            snapshot_id = changed.operation.snapshot_id
            assert snapshot_id is not None
            await store.snapshots.pin(snapshot_id, bytes(32), now=START)
            await store.sandboxes.observe_exit(sandbox.id, 1, reason="oom", at=START, data={})
            outcome = Outcome(status=Status.SUCCEEDED, at=START, published=publication(snapshot_id))
            ended, finished = await store.operations.finish(changed.operation, outcome)
            assert (ended.state, ended.reason, finished.status) == (State.FAILED, "oom", status)
            assert (ended.restorable, ended.snapshot_id) == (True, snapshot_id)
            assert await store.snapshots.unwanted(limit=9) == []
            recovered = await after(store, ended, Kind.RECOVER)
            assert (recovered.state, recovered.generation) == (State.RUNNING, 2)

    async def test_a_save_that_failed_publishes_nothing(self, store: Store) -> None:
        sandbox = await a_running(store)
        changed = await store.sandboxes.change(change(sandbox, Kind.SUSPEND))
        snapshot_id = changed.operation.snapshot_id
        assert snapshot_id is not None
        await store.snapshots.pin(snapshot_id, bytes(32), now=START)
        await store.sandboxes.observe_exit(sandbox.id, 1, reason="oom", at=START, data={})
        ended, finished = await store.operations.finish(changed.operation, failure())
        assert (ended.state, ended.restorable, finished.status) == (State.FAILED, False, Status.FAILED)
        assert [row.id for row in await store.snapshots.unwanted(limit=9)] == [snapshot_id]

"""What every store must do; a store's tests subclass `StoreConformance` and give it a `store` fixture.

The aggregates of accounts, processes, audit and idempotency have suites of their own.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from space.core.errors import (
    CapacityUnavailable,
    InvalidRequest,
    InvalidTransition,
    LimitExceeded,
    NotFound,
    OperationInProgress,
    StaleVersion,
)
from space.core.event import Event
from space.core.lifecycle import Admission, Kind, State
from space.core.operation import Operation, Status
from space.core.sandbox import AutoLifecycle, OnIdle, Resources, Sandbox
from space.core.store import Outcome, Room, SandboxFilter, Store
from space.testing.projects import add_project
from space.testing.rows import NODE, OTHER_PROJECT, PROJECT, START, change, creation, entry, lease

SECOND = timedelta(seconds=1)


async def add_projects(store: Store, **quotas: Any) -> None:
    """Add the two projects that the suite uses; `quotas` are of the first."""
    await add_project(store, PROJECT, name="one", at=START, **quotas)
    await add_project(store, OTHER_PROJECT, name="two", at=START)


async def _created(store: Store, **changes: Any) -> tuple[Sandbox, Operation]:
    made = creation(**changes)
    await store.sandboxes.create(made)
    return made.sandbox, made.operation


async def _running(store: Store, **changes: Any) -> Sandbox:
    sandbox, operation = await _created(store, **changes)
    ended, _ = await store.operations.finish(operation, Outcome(status=Status.SUCCEEDED, at=sandbox.created_at))
    return ended


async def _deleted(store: Store, **changes: Any) -> Sandbox:
    sandbox = await _running(store, **changes)
    changed = await store.sandboxes.change(change(sandbox, Kind.DELETE))
    ended, _ = await store.operations.finish(changed.operation, Outcome(status=Status.SUCCEEDED, at=START))
    return ended


def _success(seconds: float = 0) -> Outcome:
    return Outcome(status=Status.SUCCEEDED, at=START + timedelta(seconds=seconds))


@pytest.mark.anyio
class StoreConformance:
    """Tests of sandboxes, operations and events."""

    # Creating

    async def test_what_was_created_is_found_as_it_was_given(self, store: Store) -> None:
        made = creation(
            env={"A": "1", "ü": "\u0000\n"},
            metadata={"task": "42"},
            auto_lifecycle=AutoLifecycle(idle_seconds=5, on_idle=OnIdle.DELETE, max_lifetime_seconds=9),
            resources=Resources(vcpus=2, memory_mib=64, disk_mib=128),
            expires_at=START + SECOND,
        )
        await store.sandboxes.create(made)
        assert await store.sandboxes.find(made.sandbox.id) == made.sandbox
        assert await store.operations.find(made.operation.id) == made.operation
        events = await store.events.read(made.sandbox.id, after=0, limit=10)
        assert [(event.seq, event.type, event.operation_id) for event in events] == [
            (1, "sandbox.created", made.operation.id)
        ]
        assert events[0].data["state"] == "creating"

    async def test_what_does_not_exist_is_not_found(self, store: Store) -> None:
        assert await store.sandboxes.find("sbx" + "0" * 26) is None
        assert await store.operations.find("ops" + "0" * 26) is None
        assert await store.events.read("sbx" + "0" * 26, after=0, limit=1) == []

    async def test_a_create_in_an_unknown_project_records_nothing(self, store: Store) -> None:
        made = creation(project_id="prj" + "v" * 26)
        with pytest.raises(NotFound):
            await store.sandboxes.create(made)
        assert await store.sandboxes.find(made.sandbox.id) is None
        assert await store.operations.find(made.operation.id) is None

    @pytest.mark.parametrize(
        ("quota", "limit", "named"),
        [
            ("max_sandboxes", 2, "sandboxes"),
            ("max_vcpus", 2, "vcpus"),
            ("max_memory_mib", 1024, "memory_mib"),
            ("max_disk_mib", 4096, "disk_mib"),
            ("max_creates_per_minute", 2, "creates_per_minute"),
        ],
    )
    async def test_a_quota_holds_and_is_named(self, store: Store, quota: str, limit: int, named: str) -> None:
        await store.accounts.change_project(PROJECT, {quota: limit}, entry())
        for _ in range(2):
            await _created(store)
        refused = creation()
        with pytest.raises(LimitExceeded) as caught:
            await store.sandboxes.create(refused)
        assert caught.value.details["quota"] == named
        assert caught.value.details["limit"] == limit
        assert await store.sandboxes.find(refused.sandbox.id) is None
        await _created(store, project_id=OTHER_PROJECT)  # another project's quota is its own

    async def test_a_quota_holds_when_many_create_at_once(self, store: Store) -> None:
        await store.accounts.change_project(PROJECT, {"max_sandboxes": 5}, entry())
        results = await asyncio.gather(*(store.sandboxes.create(creation()) for _ in range(20)), return_exceptions=True)
        assert sum(result is None for result in results) == 5
        assert sum(isinstance(result, LimitExceeded) for result in results) == 15

    @pytest.mark.parametrize(
        ("room", "named"),
        [(Room(memory_mib=1024, machines=9), "memory_mib"), (Room(memory_mib=9999, machines=2), "machines")],
    )
    async def test_a_nodes_room_is_never_promised_twice(self, store: Store, room: Room, named: str) -> None:
        results = await asyncio.gather(
            *(store.sandboxes.create(replace(creation(), room=room)) for _ in range(6)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, CapacityUnavailable)]
        assert [error.details["quota"] for error in refused] == [named] * 4
        (row, _) = (await store.sandboxes.list(PROJECT, SandboxFilter(), limit=9, cursor=None)).items
        changed = await store.sandboxes.change(change(row, Kind.DELETE))
        with pytest.raises(CapacityUnavailable):  # the machine may still be there
            await store.sandboxes.create(replace(creation(), room=room))
        await store.operations.finish(changed.operation, _success())
        await store.sandboxes.create(replace(creation(), room=room))

    async def test_deleting_gives_the_quota_back_and_a_minute_the_rate(self, store: Store) -> None:
        await store.accounts.change_project(PROJECT, {"max_sandboxes": 1, "max_creates_per_minute": 2}, entry())
        await _deleted(store)
        await _deleted(store)
        with pytest.raises(LimitExceeded) as caught:
            await _created(store)
        assert 0 < (caught.value.retry_after or 0) <= 60
        await _created(store, at=START + 61 * SECOND)

    async def test_a_failed_create_gives_back_memory_but_counts_as_a_sandbox_until_deleted(self, store: Store) -> None:
        await store.accounts.change_project(PROJECT, {"max_memory_mib": 512}, entry())
        _, operation = await _created(store)
        await store.operations.finish(operation, Outcome(status=Status.FAILED, at=START, error={"code": "internal"}))
        await _created(store)
        await store.accounts.change_project(PROJECT, {"max_sandboxes": 2}, entry())
        with pytest.raises(LimitExceeded) as caught:
            await _created(store)
        assert caught.value.details["quota"] == "sandboxes"

    async def test_the_default_quota_applies_where_the_project_has_none(self, store: Store) -> None:
        await _created(store, default_max_sandboxes=1)
        with pytest.raises(LimitExceeded):
            await _created(store, default_max_sandboxes=1)
        await store.accounts.change_project(PROJECT, {"max_sandboxes": 3}, entry())
        await _created(store, default_max_sandboxes=1)

    # Changing

    async def test_a_success_ends_in_the_state_of_the_table(self, store: Store) -> None:
        sandbox, operation = await _created(store)
        ended, finished = await store.operations.finish(operation, _success(2))
        assert (ended.state, ended.held_by, ended.shown_state) == (State.RUNNING, None, "running")
        assert ended.started_at == START + 2 * SECOND
        assert ended.version > sandbox.version
        assert (finished.status, finished.finished_at) == (Status.SUCCEEDED, START + 2 * SECOND)
        assert finished.lease_owner is None
        assert await store.sandboxes.find(sandbox.id) == ended
        assert await store.operations.find(operation.id) == finished

    async def test_a_failed_create_fails_its_sandbox_with_a_reason(self, store: Store) -> None:
        _, operation = await _created(store)
        error = {"code": "internal", "message": "it did not boot"}
        ended, finished = await store.operations.finish(
            operation, Outcome(status=Status.FAILED, at=START, error=error, reason="boot_failed")
        )
        assert (ended.state, ended.reason, ended.held_by) == (State.FAILED, "boot_failed", None)
        assert (finished.status, finished.error) == (Status.FAILED, error)
        events = await store.events.read(ended.id, after=1, limit=9)
        assert [(event.type, event.data["reason"]) for event in events] == [("operation.failed", "boot_failed")]

    async def test_a_delete_raises_the_generation_and_cancels_the_holder(self, store: Store) -> None:
        sandbox, create = await _created(store)
        changed = await store.sandboxes.change(change(sandbox, Kind.DELETE, owner="two"))
        assert changed.admission is Admission.START
        assert changed.cancelled == create.id
        assert changed.sandbox.generation == changed.operation.generation == 2
        assert changed.sandbox.shown_state == "deleting"
        cancelled = await store.operations.find(create.id)
        assert cancelled is not None
        assert cancelled.status is Status.CANCELLED
        with pytest.raises(StaleVersion):
            await store.operations.finish(create, _success())
        with pytest.raises(StaleVersion):
            await store.operations.renew(create, lease())
        with pytest.raises(StaleVersion):
            await store.operations.finish_step(create, "start_machine", lease=lease())
        with pytest.raises(StaleVersion):
            await store.operations.postpone(create, until=START, error={})
        ended, _ = await store.operations.finish(changed.operation, _success())
        assert (ended.state, ended.deleted_at) == (State.DELETED, START)

    async def test_a_second_delete_joins_and_a_third_is_satisfied(self, store: Store) -> None:
        sandbox = await _running(store)
        first = await store.sandboxes.change(change(sandbox, Kind.DELETE))
        second = await store.sandboxes.change(change(sandbox, Kind.DELETE))
        assert (second.admission, second.operation.id) == (Admission.JOIN, first.operation.id)
        await store.operations.finish(first.operation, _success())
        third = await store.sandboxes.change(change(sandbox, Kind.DELETE))
        assert third.admission is Admission.SATISFIED
        assert third.operation.status is Status.SUCCEEDED
        assert await store.operations.find(third.operation.id) == third.operation
        assert (await store.sandboxes.change(change(sandbox, Kind.DELETE))).admission is Admission.SATISFIED

    async def test_concurrent_deletes_make_one_operation(self, store: Store) -> None:
        sandbox = await _running(store)
        changes = await asyncio.gather(
            *(store.sandboxes.change(change(sandbox, Kind.DELETE, owner=str(n))) for n in range(10))
        )
        assert len({changed.operation.id for changed in changes}) == 1
        assert [changed.admission for changed in changes].count(Admission.START) == 1

    async def test_refusals_change_nothing(self, store: Store) -> None:
        sandbox = await _running(store)
        suspend = await store.sandboxes.change(change(sandbox, Kind.SUSPEND))
        before = await store.sandboxes.find(sandbox.id)
        with pytest.raises(OperationInProgress) as caught:
            await store.sandboxes.change(change(sandbox, Kind.PAUSE))
        assert caught.value.details["operation_id"] == suspend.operation.id
        assert await store.sandboxes.find(sandbox.id) == before
        assert before is not None
        assert before.generation == 1, "only starts and deletes raise the generation"
        await store.operations.finish(suspend.operation, _success())
        with pytest.raises(InvalidTransition):
            await store.sandboxes.change(change(sandbox, Kind.PAUSE))
        with pytest.raises(NotFound):
            await store.sandboxes.change(change(sandbox, Kind.DELETE, project_id=OTHER_PROJECT))

    async def test_every_other_kind_is_data_for_the_store(self, store: Store) -> None:
        sandbox = await _running(store)
        for kind, state, generation in (
            (Kind.PAUSE, State.PAUSED, 1),
            (Kind.WAKE, State.RUNNING, 2),
            (Kind.SNAPSHOT, State.RUNNING, 2),
            (Kind.SUSPEND, State.SUSPENDED, 2),
            (Kind.WAKE, State.RUNNING, 3),
            (Kind.FORK, State.RUNNING, 3),
        ):
            changed = await store.sandboxes.change(change(sandbox, kind))
            ended, _ = await store.operations.finish(changed.operation, _success())
            assert (ended.state, ended.generation) == (state, generation)

    async def test_a_success_after_the_machine_died_is_recorded_as_a_failure(self, store: Store) -> None:
        sandbox = await _running(store)
        suspend = await store.sandboxes.change(change(sandbox, Kind.SUSPEND))
        assert await store.sandboxes.observe_exit(sandbox.id, 1, reason="oom", at=START, data={})
        ended, finished = await store.operations.finish(suspend.operation, _success())
        assert (ended.state, ended.reason) == (State.FAILED, "oom")
        assert finished.status is Status.FAILED
        assert finished.error is not None

    # Updating

    async def test_an_update_replaces_what_it_is_given(self, store: Store) -> None:
        sandbox = await _running(store, metadata={"a": "1", "b": "2"})
        updated = await store.sandboxes.update(
            sandbox.id, PROJECT, at=START + SECOND, audit=entry(), metadata={"c": "3"}
        )
        assert updated == await store.sandboxes.find(sandbox.id)
        assert updated.metadata == {"c": "3"}
        assert updated.auto_lifecycle == sandbox.auto_lifecycle
        assert (await self._ids(store, metadata={"c": "3"}), await self._ids(store, metadata={"a": "1"})) == (
            [sandbox.id],
            [],
        )

    async def test_extending_never_shortens_and_no_limit_stays_none(self, store: Store) -> None:
        limited = await _running(store, expires_at=START + 100 * SECOND)
        free = await _running(store)

        async def extended(sandbox: Sandbox, seconds: int) -> Any:
            row = await store.sandboxes.update(
                sandbox.id, PROJECT, at=START + 50 * SECOND, audit=entry(), extend_seconds=seconds
            )
            return row.expires_at

        assert await extended(limited, 10) == START + 100 * SECOND
        assert await extended(limited, 70) == START + 120 * SECOND
        assert await extended(free, 10) is None

    async def test_a_new_lifetime_counts_from_the_creation(self, store: Store) -> None:
        sandbox = await _running(store)
        updated = await store.sandboxes.update(
            sandbox.id, PROJECT, at=START + SECOND, audit=entry(), auto_lifecycle=AutoLifecycle(max_lifetime_seconds=60)
        )
        assert updated.expires_at == START + 60 * SECOND

    async def test_deleted_sandboxes_and_those_of_others_cannot_be_updated(self, store: Store) -> None:
        sandbox = await _running(store)
        with pytest.raises(NotFound):
            await store.sandboxes.update(sandbox.id, OTHER_PROJECT, at=START, audit=entry(), metadata={})
        await store.sandboxes.change(change(sandbox, Kind.DELETE))
        with pytest.raises(InvalidTransition):
            await store.sandboxes.update(sandbox.id, PROJECT, at=START, audit=entry(), metadata={})

    async def test_activity_is_never_set_back(self, store: Store) -> None:
        sandbox = await _running(store)
        await store.sandboxes.touch({sandbox.id: START + 5 * SECOND})
        await store.sandboxes.touch({sandbox.id: START + 3 * SECOND})
        row = await store.sandboxes.find(sandbox.id)
        assert row is not None
        assert row.last_active_at == START + 5 * SECOND
        assert row.version == sandbox.version + 1, "every write raises it, or readers would show the past"

    # Listing

    async def _ids(self, store: Store, **where: Any) -> list[str]:
        page = await store.sandboxes.list(PROJECT, SandboxFilter(**where), limit=100, cursor=None)
        return [row.id for row in page.items]

    async def test_filters_select_and_deleted_ones_are_left_out(self, store: Store) -> None:
        running = await _running(store, metadata={"team": "a", "n": "1"})
        creating, _ = await _created(store, template="other", metadata={"team": "a"}, at=START + SECOND)
        deleted = await _deleted(store, at=START + 2 * SECOND)
        await _running(store, project_id=OTHER_PROJECT)
        assert await self._ids(store) == [creating.id, running.id]
        assert await self._ids(store, newest_first=False) == [running.id, creating.id]
        assert await self._ids(store, state="running") == [running.id]
        assert await self._ids(store, state="creating") == [creating.id]
        assert await self._ids(store, state="deleted") == [deleted.id]
        assert await self._ids(store, state="no such state") == []
        assert await self._ids(store, template="other") == [creating.id]
        assert await self._ids(store, template=running.template_digest) == [creating.id, running.id]
        assert await self._ids(store, runtime="fake") == [creating.id, running.id]
        assert await self._ids(store, runtime="gvisor") == []
        assert await self._ids(store, metadata={"team": "a"}) == [creating.id, running.id]
        assert await self._ids(store, metadata={"team": "a", "n": "1"}) == [running.id]
        assert await self._ids(store, metadata={"team": "%"}) == []
        assert await self._ids(store, created_after=START + SECOND) == [creating.id]
        assert await self._ids(store, created_before=START + SECOND) == [running.id]

    @pytest.mark.parametrize("newest_first", [True, False])
    @pytest.mark.parametrize("metadata", [{}, {"k": "v"}])
    async def test_pages_are_whole_and_stable_while_rows_come_and_go(
        self, store: Store, newest_first: bool, metadata: dict[str, str]
    ) -> None:
        made = [await _running(store, metadata={"k": "v"}) for _ in range(10)]
        where = SandboxFilter(newest_first=newest_first, metadata=metadata)
        seen: list[str] = []
        cursor = None
        for number in range(5):
            page = await store.sandboxes.list(PROJECT, where, limit=3, cursor=cursor)
            seen += [row.id for row in page.items]
            if number == 0:  # new ones and deleted ones do not shift what follows
                await _running(store, metadata={"k": "v"}, at=START - SECOND if newest_first else START + SECOND)
                await store.sandboxes.change(change(made[5], Kind.DELETE))
            cursor = page.next_cursor
            if cursor is None:
                break
        assert cursor is None
        assert len(seen) == len(set(seen)) == 11
        assert seen == sorted(seen, reverse=newest_first)

    async def test_a_page_that_is_just_full_is_the_last(self, store: Store) -> None:
        for _ in range(3):
            await _running(store)
        page = await store.sandboxes.list(PROJECT, SandboxFilter(), limit=3, cursor=None)
        assert (len(page.items), page.next_cursor) == (3, None)

    async def test_a_cursor_of_another_filter_or_of_nobody_is_refused(self, store: Store) -> None:
        for _ in range(2):
            await _running(store)
        page = await store.sandboxes.list(PROJECT, SandboxFilter(), limit=1, cursor=None)
        assert page.next_cursor
        for cursor, where in (
            (page.next_cursor, SandboxFilter(state="running")),
            (page.next_cursor[:-2], SandboxFilter()),
            ("", SandboxFilter()),
            ("ä", SandboxFilter()),
            ("A" * 5000, SandboxFilter()),
            ("\ud800", SandboxFilter()),
        ):
            with pytest.raises(InvalidRequest) as caught:
                await store.sandboxes.list(PROJECT, where, limit=1, cursor=cursor)
            assert caught.value.details["field"] == "cursor"

    async def test_reading_shows_every_committed_write_at_once(self, store: Store) -> None:
        sandbox = await _running(store)
        for number in range(5):
            metadata = {"n": str(number)}
            await store.sandboxes.update(sandbox.id, PROJECT, at=START, audit=entry(), metadata=metadata)
            found = await store.sandboxes.find(sandbox.id)
            page = await store.sandboxes.list(PROJECT, SandboxFilter(), limit=1, cursor=None)
            assert found == page.items[0]
            assert found is not None
            assert found.metadata == metadata

    # Leases

    async def test_nobody_claims_what_is_leased_until_the_lease_ran_out(self, store: Store) -> None:
        _, operation = await _created(store)
        assert await store.operations.claim(lease("two"), now=START + 14 * SECOND, limit=9) == []
        later = START + 15 * SECOND
        claimed = await store.operations.claim(lease("two", at=later), now=later, limit=9)
        assert [(row.id, row.lease_owner, row.attempt) for row in claimed] == [(operation.id, "two", 2)]
        assert await store.operations.claim(lease("three", at=later), now=later, limit=9) == []
        with pytest.raises(StaleVersion):
            await store.operations.finish(operation, _success())
        await store.operations.finish(claimed[0], _success())

    async def test_the_same_owner_with_an_older_claim_is_fenced_too(self, store: Store) -> None:
        _, operation = await _created(store)
        later = START + 20 * SECOND
        (claimed,) = await store.operations.claim(lease("one", at=later), now=later, limit=9)
        with pytest.raises(StaleVersion):
            await store.operations.renew(operation, lease("one", at=later))
        await store.operations.renew(claimed, lease("one", at=later))

    async def test_renewing_moves_the_end_and_keeps_the_step(self, store: Store) -> None:
        _, operation = await _created(store)
        stepped = await store.operations.finish_step(operation, "first", lease=lease())
        assert stepped.step == "first"
        await store.operations.renew(operation, lease(at=START + 10 * SECOND))
        assert await store.operations.claim(lease("two"), now=START + 20 * SECOND, limit=9) == []
        (claimed,) = await store.operations.claim(lease("two"), now=START + 25 * SECOND, limit=9)
        assert claimed.step == "first"

    async def test_a_postponed_operation_waits_and_keeps_its_error(self, store: Store) -> None:
        _, operation = await _created(store)
        await store.operations.postpone(operation, until=START + 5 * SECOND, error={"code": "internal"})
        row = await store.operations.find(operation.id)
        assert row is not None
        assert (row.status, row.error, row.lease_owner) == (Status.QUEUED, {"code": "internal"}, None)
        assert await store.operations.claim(lease("two"), now=START + 4 * SECOND, limit=9) == []
        (claimed,) = await store.operations.claim(lease("two"), now=START + 5 * SECOND, limit=9)
        assert claimed.status is Status.RUNNING

    async def test_claims_are_bounded_and_never_given_twice(self, store: Store) -> None:
        for _ in range(10):
            await _created(store)
        later = START + 60 * SECOND
        parts = await asyncio.gather(
            *(store.operations.claim(lease(str(n), at=later), now=later, limit=3) for n in range(5))
        )
        ids = [row.id for part in parts for row in part]
        assert [len(part) for part in parts] == [3, 3, 3, 1, 0]
        assert len(set(ids)) == 10

    # Observing

    async def test_an_exit_fails_a_running_sandbox_once(self, store: Store) -> None:
        sandbox = await _running(store)
        observed: dict[str, Any] = {"reason": "oom", "at": START, "data": {"code": 137}}
        assert await store.sandboxes.observe_exit(sandbox.id, 1, **observed)
        assert not await store.sandboxes.observe_exit(sandbox.id, 1, **observed)
        row = await store.sandboxes.find(sandbox.id)
        assert row is not None
        assert (row.state, row.reason) == (State.FAILED, "oom")
        (event,) = await store.events.read(sandbox.id, after=2, limit=9)
        assert event.type == "machine.exited"
        assert event.data == {"state": "failed", "reason": "oom", "generation": 1, "code": 137}

    async def test_an_exit_of_another_generation_or_before_the_start_says_nothing(self, store: Store) -> None:
        pending, _ = await _created(store)
        running = await _running(store)
        deleted = await _deleted(store)
        for sandbox, generation in ((pending, 1), (running, 0), (running, 2), (deleted, 2)):
            before = await store.sandboxes.find(sandbox.id)
            assert not await store.sandboxes.observe_exit(sandbox.id, generation, reason="x", at=START, data={})
            assert await store.sandboxes.find(sandbox.id) == before
        assert not await store.sandboxes.observe_exit("sbx", 1, reason="x", at=START, data={})  # type: ignore[arg-type]

    async def test_a_nodes_desired_set_is_all_that_is_not_deleted(self, store: Store) -> None:
        pending, _ = await _created(store)
        running = await _running(store)
        deleting = await _running(store)
        await store.sandboxes.change(change(deleting, Kind.DELETE))
        await _deleted(store)
        await _running(store, node_id="nod" + "v" * 26)
        assert await store.sandboxes.desired(NODE) == {
            pending.id: (1, State.PENDING, Kind.CREATE),
            running.id: (1, State.RUNNING, None),
            deleting.id: (2, State.RUNNING, Kind.DELETE),
        }

    # Time

    async def test_what_is_overdue_is_found_with_its_reason(self, store: Store) -> None:
        expired = await _running(store, expires_at=START + 5 * SECOND)
        idle = await _running(store, auto_lifecycle=AutoLifecycle(idle_seconds=5, on_idle=OnIdle.DELETE))
        kept = await _running(store, auto_lifecycle=AutoLifecycle(idle_seconds=5, on_idle=OnIdle.NONE))
        going = await _running(store, expires_at=START + 5 * SECOND)
        await store.sandboxes.change(change(going, Kind.DELETE))
        assert await store.sandboxes.overdue(START + 4.9 * SECOND, limit=9) == []
        found = await store.sandboxes.overdue(START + 5 * SECOND, limit=9)
        assert found == [(expired.id, PROJECT, "expired"), (idle.id, PROJECT, "idle")]
        await store.sandboxes.touch({idle.id: START + 3 * SECOND, kept.id: START + 3 * SECOND})
        assert await store.sandboxes.overdue(START + 6 * SECOND, limit=9) == [(expired.id, PROJECT, "expired")]

    async def test_deleted_sandboxes_are_kept_and_then_forgotten_with_all_that_was_theirs(self, store: Store) -> None:
        deleted, kept = await _deleted(store, metadata={"a": "b"}), await _running(store)
        assert await store.sandboxes.purge(START, limit=9) == 0
        assert await store.sandboxes.find(deleted.id) is not None
        assert await store.sandboxes.purge(START + SECOND, limit=9) == 1
        assert await store.sandboxes.find(deleted.id) is None
        assert await store.events.read(deleted.id, after=0, limit=9) == []
        assert await store.sandboxes.find(kept.id) is not None
        with pytest.raises(NotFound):
            await store.sandboxes.change(change(deleted, Kind.DELETE))

    # Events and watches

    async def test_events_count_from_one_without_gaps_for_each_sandbox(self, store: Store) -> None:
        one, two = await _running(store), await _running(store)

        def event(sandbox: Sandbox, number: int) -> Event:
            return Event(
                project_id=PROJECT,
                sandbox_id=sandbox.id,
                operation_id=None,
                type="test",
                data={"n": number},
                at=START,
            )

        await asyncio.gather(*(store.events.append(event(sandbox, n)) for n in range(20) for sandbox in (one, two)))
        for sandbox in (one, two):
            events = await store.events.read(sandbox.id, after=0, limit=100)
            assert [each.seq for each in events] == list(range(1, 23))
            assert [each.data["n"] for each in events[2:]] == list(range(20))
            assert [each.seq for each in await store.events.read(sandbox.id, after=5, limit=2)] == [6, 7]

    async def test_a_watch_hears_of_every_commit_that_touches_its_topic(self, store: Store) -> None:
        sandbox, operation = await _created(store)
        with store.watch(operation.id) as of_operation, store.watch(sandbox.id) as of_sandbox:
            await store.operations.finish(operation, _success())
            async with asyncio.timeout(5):
                await of_operation.wait(60)  # it happened before we waited: not missed
                await of_sandbox.wait(60)
            with store.watch("sbx") as other:
                begun = asyncio.get_running_loop().time()
                await other.wait(0.01)
                assert asyncio.get_running_loop().time() - begun < 5

    async def test_a_refused_write_wakes_nobody(self, store: Store) -> None:
        sandbox = await _running(store)
        with store.watch(sandbox.id) as watch:
            waiting = asyncio.create_task(watch.wait(0.2))
            with pytest.raises(InvalidTransition):
                await store.sandboxes.change(change(sandbox, Kind.CREATE))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await waiting

"""Creating, changing and updating sandboxes."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from space.core.errors import (
    CapacityUnavailable,
    InvalidTransition,
    LimitExceeded,
    NotFound,
    OperationInProgress,
    StaleVersion,
)
from space.core.lifecycle import Admission, Kind, State
from space.core.operation import Status
from space.core.sandbox import AutoLifecycle, OnIdle, Resources, Sandbox
from space.core.store import Outcome, Room, SandboxFilter, Store
from space.testing.conformance.store.made import SECOND, a_deleted, a_new, a_running, ids, success
from space.testing.rows import OTHER_PROJECT, PROJECT, START, change, creation, entry, lease, succeed


@pytest.mark.anyio
class SandboxConformance:
    """Tests of the rows of sandboxes and of what is admitted."""

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
            await a_new(store)
        refused = creation()
        with pytest.raises(LimitExceeded) as caught:
            await store.sandboxes.create(refused)
        assert caught.value.details["quota"] == named
        assert caught.value.details["limit"] == limit
        assert await store.sandboxes.find(refused.sandbox.id) is None
        await a_new(store, project_id=OTHER_PROJECT)  # another project's quota is its own

    async def test_a_quota_holds_when_many_create_at_once(self, store: Store) -> None:
        await store.accounts.change_project(PROJECT, {"max_sandboxes": 5}, entry())
        results = await asyncio.gather(*(store.sandboxes.create(creation()) for _ in range(20)), return_exceptions=True)
        assert sum(isinstance(result, Sandbox) for result in results) == 5
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
        await store.operations.finish(changed.operation, success())
        await store.sandboxes.create(replace(creation(), room=room))

    async def test_deleting_gives_the_quota_back_and_a_minute_the_rate(self, store: Store) -> None:
        await store.accounts.change_project(PROJECT, {"max_sandboxes": 1, "max_creates_per_minute": 2}, entry())
        await a_deleted(store)
        await a_deleted(store)
        with pytest.raises(LimitExceeded) as caught:
            await a_new(store)
        assert 0 < (caught.value.retry_after or 0) <= 60
        await a_new(store, at=START + 61 * SECOND)

    async def test_a_failed_create_gives_back_memory_but_counts_as_a_sandbox_until_deleted(self, store: Store) -> None:
        await store.accounts.change_project(PROJECT, {"max_memory_mib": 512}, entry())
        _, operation = await a_new(store)
        await store.operations.finish(operation, Outcome(status=Status.FAILED, at=START, error={"code": "internal"}))
        await a_new(store)
        await store.accounts.change_project(PROJECT, {"max_sandboxes": 2}, entry())
        with pytest.raises(LimitExceeded) as caught:
            await a_new(store)
        assert caught.value.details["quota"] == "sandboxes"

    async def test_the_default_quota_applies_where_the_project_has_none(self, store: Store) -> None:
        await a_new(store, default_max_sandboxes=1)
        with pytest.raises(LimitExceeded):
            await a_new(store, default_max_sandboxes=1)
        await store.accounts.change_project(PROJECT, {"max_sandboxes": 3}, entry())
        await a_new(store, default_max_sandboxes=1)

    async def test_a_success_ends_in_the_state_of_the_table(self, store: Store) -> None:
        sandbox, operation = await a_new(store)
        ended, finished = await store.operations.finish(operation, success(2))
        assert (ended.state, ended.held_by, ended.shown_state) == (State.RUNNING, None, "running")
        assert ended.started_at == START + 2 * SECOND
        assert ended.version > sandbox.version
        assert (finished.status, finished.finished_at) == (Status.SUCCEEDED, START + 2 * SECOND)
        assert finished.lease_owner is None
        assert await store.sandboxes.find(sandbox.id) == ended
        assert await store.operations.find(operation.id) == finished

    async def test_a_failed_create_fails_its_sandbox_with_a_reason(self, store: Store) -> None:
        _, operation = await a_new(store)
        error = {"code": "internal", "message": "it did not boot"}
        ended, finished = await store.operations.finish(
            operation, Outcome(status=Status.FAILED, at=START, error=error, reason="boot_failed")
        )
        assert (ended.state, ended.reason, ended.held_by) == (State.FAILED, "boot_failed", None)
        assert (finished.status, finished.error) == (Status.FAILED, error)
        events = await store.events.read(ended.id, after=1, limit=9)
        assert [(event.type, event.data["reason"]) for event in events] == [("operation.failed", "boot_failed")]

    async def test_a_delete_raises_the_generation_and_cancels_the_holder(self, store: Store) -> None:
        sandbox, create = await a_new(store)
        changed = await store.sandboxes.change(change(sandbox, Kind.DELETE, owner="two"))
        assert changed.admission is Admission.START
        assert changed.cancelled == create.id
        assert changed.sandbox.generation == changed.operation.generation == 2
        assert changed.sandbox.shown_state == "deleting"
        cancelled = await store.operations.find(create.id)
        assert cancelled is not None
        assert cancelled.status is Status.CANCELLED
        with pytest.raises(StaleVersion):
            await store.operations.finish(create, success())
        with pytest.raises(StaleVersion):
            await store.operations.renew(create, lease())
        with pytest.raises(StaleVersion):
            await store.operations.finish_step(create, "start_machine", lease=lease())
        with pytest.raises(StaleVersion):
            await store.operations.postpone(create, until=START, error={})
        ended, _ = await store.operations.finish(changed.operation, success())
        assert (ended.state, ended.deleted_at) == (State.DELETED, START)

    async def test_a_second_delete_joins_and_a_third_is_satisfied(self, store: Store) -> None:
        sandbox = await a_running(store)
        first = await store.sandboxes.change(change(sandbox, Kind.DELETE))
        second = await store.sandboxes.change(change(sandbox, Kind.DELETE))
        assert (second.admission, second.operation.id) == (Admission.JOIN, first.operation.id)
        await store.operations.finish(first.operation, success())
        third = await store.sandboxes.change(change(sandbox, Kind.DELETE))
        assert third.admission is Admission.SATISFIED
        assert third.operation.status is Status.SUCCEEDED
        assert await store.operations.find(third.operation.id) == third.operation
        assert (await store.sandboxes.change(change(sandbox, Kind.DELETE))).admission is Admission.SATISFIED

    async def test_concurrent_deletes_make_one_operation(self, store: Store) -> None:
        sandbox = await a_running(store)
        changes = await asyncio.gather(
            *(store.sandboxes.change(change(sandbox, Kind.DELETE, owner=str(n))) for n in range(10))
        )
        assert len({changed.operation.id for changed in changes}) == 1
        assert [changed.admission for changed in changes].count(Admission.START) == 1

    async def test_refusals_change_nothing(self, store: Store) -> None:
        sandbox = await a_running(store)
        suspend = await store.sandboxes.change(change(sandbox, Kind.SUSPEND))
        before = await store.sandboxes.find(sandbox.id)
        with pytest.raises(OperationInProgress) as caught:
            await store.sandboxes.change(change(sandbox, Kind.PAUSE))
        assert caught.value.details["operation_id"] == suspend.operation.id
        assert await store.sandboxes.find(sandbox.id) == before
        assert before is not None
        assert before.generation == 1, "only starts and deletes raise the generation"
        await succeed(store, suspend.operation)
        with pytest.raises(InvalidTransition):
            await store.sandboxes.change(change(sandbox, Kind.PAUSE))
        with pytest.raises(NotFound):
            await store.sandboxes.change(change(sandbox, Kind.DELETE, project_id=OTHER_PROJECT))

    async def test_a_success_after_the_machine_died_is_recorded_as_a_failure(self, store: Store) -> None:
        sandbox = await a_running(store)
        suspend = await store.sandboxes.change(change(sandbox, Kind.SUSPEND))
        assert await store.sandboxes.observe_exit(sandbox.id, 1, reason="oom", at=START, data={})
        ended, finished = await store.operations.finish(suspend.operation, success())
        assert (ended.state, ended.reason) == (State.FAILED, "oom")
        assert finished.status is Status.FAILED
        assert finished.error is not None

    async def test_an_update_replaces_what_it_is_given(self, store: Store) -> None:
        sandbox = await a_running(store, metadata={"a": "1", "b": "2"})
        updated = await store.sandboxes.update(
            sandbox.id, PROJECT, at=START + SECOND, audit=entry(), metadata={"c": "3"}
        )
        assert updated == await store.sandboxes.find(sandbox.id)
        assert updated.metadata == {"c": "3"}
        assert updated.auto_lifecycle == sandbox.auto_lifecycle
        assert (await ids(store, metadata={"c": "3"}), await ids(store, metadata={"a": "1"})) == (
            [sandbox.id],
            [],
        )

    async def test_extending_never_shortens_and_no_limit_stays_none(self, store: Store) -> None:
        limited = await a_running(store, expires_at=START + 100 * SECOND)
        free = await a_running(store)

        async def extended(sandbox: Sandbox, seconds: int) -> Any:
            row = await store.sandboxes.update(
                sandbox.id, PROJECT, at=START + 50 * SECOND, audit=entry(), extend_seconds=seconds
            )
            return row.expires_at

        assert await extended(limited, 10) == START + 100 * SECOND
        assert await extended(limited, 70) == START + 120 * SECOND
        assert await extended(free, 10) is None

    async def test_a_new_lifetime_counts_from_the_creation(self, store: Store) -> None:
        sandbox = await a_running(store)
        updated = await store.sandboxes.update(
            sandbox.id, PROJECT, at=START + SECOND, audit=entry(), auto_lifecycle=AutoLifecycle(max_lifetime_seconds=60)
        )
        assert updated.expires_at == START + 60 * SECOND

    async def test_deleted_sandboxes_and_those_of_others_cannot_be_updated(self, store: Store) -> None:
        sandbox = await a_running(store)
        with pytest.raises(NotFound):
            await store.sandboxes.update(sandbox.id, OTHER_PROJECT, at=START, audit=entry(), metadata={})
        await store.sandboxes.change(change(sandbox, Kind.DELETE))
        with pytest.raises(InvalidTransition):
            await store.sandboxes.update(sandbox.id, PROJECT, at=START, audit=entry(), metadata={})

    async def test_activity_is_never_set_back(self, store: Store) -> None:
        sandbox = await a_running(store)
        await store.sandboxes.touch({sandbox.id: START + 5 * SECOND})
        await store.sandboxes.touch({sandbox.id: START + 3 * SECOND})
        row = await store.sandboxes.find(sandbox.id)
        assert row is not None
        assert row.last_active_at == START + 5 * SECOND
        assert row.version == sandbox.version + 1, "every write raises it, or readers would show the past"

"""What happens unasked, and what time brings."""

from typing import Any

import pytest

from space.core.errors import NotFound
from space.core.lifecycle import Kind, State
from space.core.sandbox import AutoLifecycle, OnIdle
from space.core.store import Store
from space.testing.conformance.store.made import SECOND, a_deleted, a_new, a_running
from space.testing.rows import NODE, PROJECT, START, change


@pytest.mark.anyio
class ObservationConformance:
    """Tests of exits, idleness, lifetimes and forgetting."""

    async def test_an_exit_fails_a_running_sandbox_once(self, store: Store) -> None:
        sandbox = await a_running(store)
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
        pending, _ = await a_new(store)
        running = await a_running(store)
        deleted = await a_deleted(store)
        for sandbox, generation in ((pending, 1), (running, 0), (running, 2), (deleted, 2)):
            before = await store.sandboxes.find(sandbox.id)
            assert not await store.sandboxes.observe_exit(sandbox.id, generation, reason="x", at=START, data={})
            assert await store.sandboxes.find(sandbox.id) == before
        assert not await store.sandboxes.observe_exit("sbx", 1, reason="x", at=START, data={})  # type: ignore[arg-type]

    async def test_a_nodes_desired_set_is_all_that_is_not_deleted(self, store: Store) -> None:
        pending, _ = await a_new(store)
        running = await a_running(store)
        deleting = await a_running(store)
        await store.sandboxes.change(change(deleting, Kind.DELETE))
        await a_deleted(store)
        await a_running(store, node_id="nod" + "v" * 26)
        assert await store.sandboxes.desired(NODE) == {
            pending.id: (1, State.PENDING, Kind.CREATE),
            running.id: (1, State.RUNNING, None),
            deleting.id: (2, State.RUNNING, Kind.DELETE),
        }

    async def test_what_is_overdue_is_found_with_its_reason(self, store: Store) -> None:
        expired = await a_running(store, expires_at=START + 5 * SECOND)
        idle = await a_running(store, auto_lifecycle=AutoLifecycle(idle_seconds=5, on_idle=OnIdle.DELETE))
        kept = await a_running(store, auto_lifecycle=AutoLifecycle(idle_seconds=5, on_idle=OnIdle.NONE))
        going = await a_running(store, expires_at=START + 5 * SECOND)
        await store.sandboxes.change(change(going, Kind.DELETE))
        assert await store.sandboxes.overdue(START + 4.9 * SECOND, limit=9) == []
        found = await store.sandboxes.overdue(START + 5 * SECOND, limit=9)
        assert found == [(expired.id, PROJECT, "expired"), (idle.id, PROJECT, "idle")]
        await store.sandboxes.touch({idle.id: START + 3 * SECOND, kept.id: START + 3 * SECOND})
        assert await store.sandboxes.overdue(START + 6 * SECOND, limit=9) == [(expired.id, PROJECT, "expired")]

    async def test_deleted_sandboxes_are_kept_and_then_forgotten_with_all_that_was_theirs(self, store: Store) -> None:
        deleted, kept = await a_deleted(store, metadata={"a": "b"}), await a_running(store)
        assert await store.sandboxes.purge(START, limit=9) == 0
        assert await store.sandboxes.find(deleted.id) is not None
        assert await store.sandboxes.purge(START + SECOND, limit=9) == 1
        assert await store.sandboxes.find(deleted.id) is None
        assert await store.events.read(deleted.id, after=0, limit=9) == []
        assert await store.sandboxes.find(kept.id) is not None
        with pytest.raises(NotFound):
            await store.sandboxes.change(change(deleted, Kind.DELETE))

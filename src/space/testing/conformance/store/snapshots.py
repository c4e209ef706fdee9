"""Snapshots: pins, what nobody needs any more, and collections."""

import asyncio
from dataclasses import replace

import pytest

from space.core.errors import FailedPrecondition, InvalidRequest, NotFound, StaleVersion, Unavailable
from space.core.lifecycle import Kind
from space.core.snapshot import Purpose, Snapshot, SnapshotState
from space.core.store import Store
from space.testing.conformance.store.made import SECOND, a_deleted, a_running, after, failure
from space.testing.rows import OTHER_PROJECT, PROJECT, START, change, creation, entry, new_id, succeed

A, B, C = (bytes([n]) * 32 for n in range(3))


async def _unwanted(store: Store) -> list[str]:
    return [snapshot.id for snapshot in await store.snapshots.unwanted(limit=99)]


async def _listed(store: Store, purpose: Purpose | None = None, sandbox_id: str | None = None) -> list[Snapshot]:
    page = await store.snapshots.list(PROJECT, purpose=purpose, sandbox_id=sandbox_id, limit=99, cursor=None)
    return list(page.items)


@pytest.mark.anyio
class SnapshotConformance:
    """Tests of the rows of snapshots."""

    async def test_a_suspends_snapshot_goes_once_the_sandbox_has_a_later_one(self, store: Store) -> None:
        first = await after(store, await a_running(store), Kind.SUSPEND)
        woken = await after(store, first, Kind.WAKE)
        assert await _unwanted(store) == [], "until then it is what the sandbox can return to"
        second = await after(store, woken, Kind.SUSPEND)
        assert await _unwanted(store) == [first.snapshot_id]
        assert await _unwanted(store) == [first.snapshot_id], "again, until it is forgotten"
        assert first.snapshot_id is not None
        await store.snapshots.forget(first.snapshot_id)
        await store.snapshots.forget(first.snapshot_id)
        assert await _unwanted(store) == []
        assert await store.snapshots.find(first.snapshot_id) is None
        await after(store, second, Kind.DELETE)
        assert await _unwanted(store) == [second.snapshot_id]

    async def test_what_is_wanted_is_not_forgotten(self, store: Store) -> None:
        suspended = await after(store, await a_running(store), Kind.SUSPEND)
        assert suspended.snapshot_id is not None
        await store.snapshots.forget(suspended.snapshot_id)
        assert await store.snapshots.find(suspended.snapshot_id) is not None

    async def test_what_was_never_finished_is_unwanted_once_nobody_works_on_it(self, store: Store) -> None:
        sandbox = await a_running(store)
        changed = await store.sandboxes.change(change(sandbox, Kind.SUSPEND))
        assert await _unwanted(store) == []
        later = START + 60 * SECOND
        (claimed,) = await store.operations.claim(change(sandbox, Kind.SUSPEND, at=later).lease, now=later, limit=9)
        assert await _unwanted(store) == [], "another server goes on with it"
        await store.operations.finish(claimed, failure())
        assert await _unwanted(store) == [changed.operation.snapshot_id]
        assert changed.operation.snapshot_id is not None
        with pytest.raises(StaleVersion):
            await store.snapshots.pin(changed.operation.snapshot_id, A, now=START)

    async def test_a_snapshot_that_somebody_starts_from_is_kept_until_that_has_ended(self, store: Store) -> None:
        suspended = await after(store, await a_running(store), Kind.SUSPEND)
        waking = await store.sandboxes.change(change(suspended, Kind.WAKE))
        assert await _unwanted(store) == []
        deleting = await store.sandboxes.change(change(suspended, Kind.DELETE))
        assert deleting.cancelled == waking.operation.id
        assert await _unwanted(store) == []
        await succeed(store, deleting.operation)
        assert await _unwanted(store) == [suspended.snapshot_id]

    async def test_named_snapshots_live_until_they_are_deleted_and_outlive_their_sandbox(self, store: Store) -> None:
        sandbox = await after(store, await a_running(store), Kind.SNAPSHOT)
        named = sandbox.snapshot_id
        assert named is not None
        await after(store, sandbox, Kind.DELETE)
        assert await store.sandboxes.purge(START + SECOND, limit=9) == 1
        assert await _unwanted(store) == []
        (listed,) = await _listed(store)
        assert (listed.id, listed.name, listed.purpose) == (named, "mine", Purpose.NAMED)
        await store.snapshots.delete(named, PROJECT, audit=entry())
        assert await _listed(store) == []
        assert await _unwanted(store) == [named]

    async def test_the_only_durable_state_of_a_sandbox_is_not_deleted(self, store: Store) -> None:
        sandbox = await after(store, await a_running(store), Kind.SNAPSHOT)
        named = sandbox.snapshot_id
        assert named is not None
        with pytest.raises(FailedPrecondition) as caught:
            await store.snapshots.delete(named, PROJECT, audit=entry())
        assert caught.value.details["sandbox_id"] == sandbox.id
        await after(store, sandbox, Kind.SUSPEND)
        await store.snapshots.delete(named, PROJECT, audit=entry())
        with pytest.raises(NotFound):
            await store.snapshots.delete(named, PROJECT, audit=entry())

    async def test_only_what_is_named_and_ones_own_can_be_deleted(self, store: Store) -> None:
        suspended = await after(store, await a_running(store), Kind.SUSPEND)
        assert suspended.snapshot_id is not None
        with pytest.raises(FailedPrecondition):
            await store.snapshots.delete(suspended.snapshot_id, PROJECT, audit=entry())
        making = await store.sandboxes.change(change(await a_running(store), Kind.SNAPSHOT))
        assert making.operation.snapshot_id is not None
        with pytest.raises(FailedPrecondition):
            await store.snapshots.delete(making.operation.snapshot_id, PROJECT, audit=entry())
        for snapshot_id, project_id in ((suspended.snapshot_id, OTHER_PROJECT), (new_id("snp"), PROJECT)):
            with pytest.raises(NotFound):
                await store.snapshots.delete(snapshot_id, project_id, audit=entry())  # type: ignore[arg-type]

    async def test_a_create_that_begins_with_a_snapshot_keeps_it(self, store: Store) -> None:
        sandbox = await after(store, await a_running(store), Kind.SNAPSHOT)
        named = sandbox.snapshot_id
        assert named is not None
        await after(store, sandbox, Kind.DELETE)
        made = creation()
        begun = replace(made, operation=replace(made.operation, snapshot_id=named))
        await store.sandboxes.create(begun)
        with pytest.raises(FailedPrecondition):
            await store.snapshots.delete(named, PROJECT, audit=entry())
        child = await succeed(store, begun.operation)
        assert (child.snapshot_id, child.restorable) == (named, True)
        await after(store, child, Kind.DELETE)
        await store.snapshots.delete(named, PROJECT, audit=entry())
        late = creation()
        with pytest.raises(NotFound):
            await store.sandboxes.create(replace(late, operation=replace(late.operation, snapshot_id=named)))

    async def test_deletes_and_creates_from_one_snapshot_never_both_succeed(self, store: Store) -> None:
        for _ in range(10):
            sandbox = await after(store, await a_running(store), Kind.SNAPSHOT)
            named = sandbox.snapshot_id
            assert named is not None
            await after(store, sandbox, Kind.DELETE)
            made = creation()
            results = await asyncio.gather(
                store.snapshots.delete(named, PROJECT, audit=entry()),
                store.sandboxes.create(replace(made, operation=replace(made.operation, snapshot_id=named))),
                return_exceptions=True,
            )
            assert sum(isinstance(result, Exception) for result in results) == 1

    async def test_lists_hold_what_is_ready_oldest_first(self, store: Store) -> None:
        one, two = await a_running(store), await a_running(store)
        ids = []
        for sandbox, kind in ((one, Kind.SNAPSHOT), (two, Kind.SUSPEND), (one, Kind.SNAPSHOT), (one, Kind.FORK)):
            ids.append((await after(store, sandbox, kind)).snapshot_id)
        await store.sandboxes.change(change(one, Kind.SNAPSHOT))
        assert [row.id for row in await _listed(store)] == ids
        assert [row.id for row in await _listed(store, Purpose.NAMED)] == [ids[0], ids[2]]
        assert [row.id for row in await _listed(store, sandbox_id=two.id)] == [ids[1]]
        page = await store.snapshots.list(PROJECT, purpose=None, sandbox_id=None, limit=3, cursor=None)
        rest = await store.snapshots.list(PROJECT, purpose=None, sandbox_id=None, limit=3, cursor=page.next_cursor)
        assert ([row.id for row in (*page.items, *rest.items)], rest.next_cursor) == (ids, None)
        other = await store.snapshots.list(OTHER_PROJECT, purpose=None, sandbox_id=None, limit=3, cursor=None)
        assert other.items == []
        with pytest.raises(InvalidRequest):
            await store.snapshots.list(PROJECT, purpose=None, sandbox_id=None, limit=3, cursor="sbx")

    async def test_unwanted_snapshots_come_a_few_at_a_time(self, store: Store) -> None:
        for _ in range(5):
            await after(store, await a_running(store), Kind.SUSPEND, Kind.DELETE)
        seen: list[str] = []
        while found := await store.snapshots.unwanted(limit=2):
            assert len(found) <= 2
            assert {row.state for row in found} == {SnapshotState.DELETING}
            for row in found:
                seen.append(row.id)
                await store.snapshots.forget(row.id)
        assert len(set(seen)) == 5

    # Collections

    async def test_every_chunk_that_a_row_pins_is_told_to_the_collector(self, store: Store) -> None:
        one = await store.sandboxes.change(change(await a_running(store), Kind.SUSPEND))
        two = await store.sandboxes.change(change(await a_running(store), Kind.SUSPEND))
        assert one.operation.snapshot_id is not None
        assert two.operation.snapshot_id is not None
        await store.snapshots.pin(one.operation.snapshot_id, A + B, now=START)
        await store.snapshots.pin(two.operation.snapshot_id, B + C, now=START)
        assert await store.snapshots.begin_collection(PROJECT, until=START + SECOND, now=START) == {A, B, C}
        await store.snapshots.end_collection(PROJECT)
        await store.snapshots.pin(two.operation.snapshot_id, B, now=START)  # replaces the earlier ones
        await store.operations.finish(one.operation, failure())
        assert await _unwanted(store) == [one.operation.snapshot_id]
        assert await store.snapshots.begin_collection(PROJECT, until=START + SECOND, now=START) == {A, B}
        await store.snapshots.end_collection(PROJECT)
        await store.snapshots.forget(one.operation.snapshot_id)
        assert await store.snapshots.begin_collection(PROJECT, until=START + SECOND, now=START) == {B}

    async def test_nobody_pins_while_chunks_are_collected(self, store: Store) -> None:
        changed = await store.sandboxes.change(change(await a_running(store), Kind.SUSPEND))
        snapshot_id = changed.operation.snapshot_id
        assert snapshot_id is not None
        await store.snapshots.begin_collection(PROJECT, until=START + 10 * SECOND, now=START)
        with pytest.raises(Unavailable):
            await store.snapshots.pin(snapshot_id, A, now=START + 9 * SECOND)
        with pytest.raises(Unavailable):
            await store.snapshots.begin_collection(PROJECT, until=START + 20 * SECOND, now=START + 9 * SECOND)
        await store.snapshots.begin_collection(OTHER_PROJECT, until=START + 10 * SECOND, now=START)
        await store.snapshots.end_collection(PROJECT)
        await store.snapshots.pin(snapshot_id, A, now=START + 9 * SECOND)

    async def test_a_projects_first_snapshot_waits_for_a_collection_too(self, store: Store) -> None:
        await store.snapshots.begin_collection(PROJECT, until=START + 10 * SECOND, now=START)
        changed = await store.sandboxes.change(change(await a_running(store), Kind.SUSPEND))
        assert changed.operation.snapshot_id is not None
        with pytest.raises(Unavailable):
            await store.snapshots.pin(changed.operation.snapshot_id, A, now=START)

    async def test_a_collector_that_died_holds_nobody_up_for_ever(self, store: Store) -> None:
        changed = await store.sandboxes.change(change(await a_running(store), Kind.SUSPEND))
        assert changed.operation.snapshot_id is not None
        await store.snapshots.begin_collection(PROJECT, until=START + 10 * SECOND, now=START)
        await store.snapshots.pin(changed.operation.snapshot_id, A, now=START + 10 * SECOND)
        assert await store.snapshots.begin_collection(PROJECT, until=START + 20 * SECOND, now=START + 10 * SECOND) == {
            A
        }

    async def test_a_project_is_collected_even_after_its_last_snapshot_is_forgotten(self, store: Store) -> None:
        assert await store.snapshots.projects() == []
        await a_deleted(store)
        assert await store.snapshots.projects() == []
        await after(store, await a_running(store), Kind.SUSPEND, Kind.DELETE)
        for snapshot in await store.snapshots.unwanted(limit=9):
            await store.snapshots.forget(snapshot.id)
        assert await store.snapshots.projects() == [PROJECT]
        assert await store.snapshots.begin_collection(PROJECT, until=START + SECOND, now=START) == frozenset()

    async def test_pins_are_whole_digests(self, store: Store) -> None:
        changed = await store.sandboxes.change(change(await a_running(store), Kind.SUSPEND))
        assert changed.operation.snapshot_id is not None
        with pytest.raises(ValueError, match="32 bytes"):
            await store.snapshots.pin(changed.operation.snapshot_id, A[:-1], now=START)

    # Keys

    async def test_a_projects_key_is_whatever_was_set_first(self, store: Store) -> None:
        assert await store.accounts.project_key(PROJECT) is None
        keys = await asyncio.gather(*(store.accounts.project_key(PROJECT, otherwise=bytes([n])) for n in range(5)))
        assert len(set(keys)) == 1
        assert await store.accounts.project_key(PROJECT, otherwise=b"x") == keys[0]
        assert await store.accounts.project_key(OTHER_PROJECT) is None
        with pytest.raises(NotFound):
            await store.accounts.project_key("prj" + "v" * 26, otherwise=b"x")  # type: ignore[arg-type]

"""What nobody needs goes, and nothing else does."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from space.control.collector import GRACE, Collector
from space.core.errors import Unavailable
from space.core.ids import ProjectId, SnapshotId
from space.core.lifecycle import Kind
from space.core.objects import chunk_key, manifest_key
from space.core.snapshot import SnapshotState
from space.storage.sql.store import SqlStore, open_store
from space.testing.clock import FakeClock
from space.testing.node import FakeNode
from space.testing.objects import FakeObjects, Fault
from space.testing.projects import add_project
from space.testing.rows import OTHER_PROJECT, PROJECT, change, creation, succeed

pytestmark = pytest.mark.anyio

HOUR = 3600.0


class World:
    """A store with snapshots, and what they have in the object store."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.clock = FakeClock()
        self.node = FakeNode()
        self.objects = FakeObjects(clock=self.clock)
        self.collector = Collector(store, self.node, self.objects, self.clock)

    def name(self, text: str) -> bytes:
        return hashlib.sha256(text.encode()).digest()

    async def put(self, *texts: str, project_id: ProjectId = PROJECT) -> None:
        """Store a chunk and a manifest of each name."""
        for text in texts:
            await self.objects.put(chunk_key(project_id, self.name(text)), b"chunk")
            await self.objects.put(manifest_key(project_id, self.name(text).hex()), b"manifest")

    def left(self, project_id: ProjectId = PROJECT) -> set[str]:
        """Return which of the names `a` to `f` have chunk and manifest; both or neither must be there."""
        found = set()
        for text in "abcdef":
            name = self.name(text)
            chunk, manifest = chunk_key(project_id, name), manifest_key(project_id, name.hex())
            assert (chunk in self.objects.objects) == (manifest in self.objects.objects)
            if chunk in self.objects.objects:
                found.add(text)
        return found

    async def suspend(self, texts: Sequence[str], *, project_id: ProjectId = PROJECT) -> tuple[str, SnapshotId]:
        """Return a suspended sandbox and its snapshot, which pins these names."""
        at = self.clock.now()
        made = creation(at=at, project_id=project_id)
        await self.store.sandboxes.create(made)
        running = await succeed(self.store, made.operation, at=at)
        return running.id, await self.suspend_again(running.id, texts)

    async def suspend_again(self, sandbox_id: str, texts: Sequence[str]) -> SnapshotId:
        at = self.clock.now()
        sandbox = await self.store.sandboxes.find(sandbox_id)
        assert sandbox is not None
        changed = await self.store.sandboxes.change(change(sandbox, Kind.SUSPEND, at=at))
        await succeed(self.store, changed.operation, at=at, chunks=b"".join(map(self.name, texts)))
        assert changed.operation.snapshot_id is not None
        return changed.operation.snapshot_id

    async def delete(self, sandbox_id: str) -> None:
        at = self.clock.now()
        sandbox = await self.store.sandboxes.find(sandbox_id)
        assert sandbox is not None
        changed = await self.store.sandboxes.change(change(sandbox, Kind.DELETE, at=at))
        await succeed(self.store, changed.operation, at=at)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    store = open_store(tmp_path / "space.db")
    world = World(store)
    for project_id in (PROJECT, OTHER_PROJECT):
        await add_project(store, project_id, name=project_id, at=world.clock.now())
    yield world
    await store.aclose()


async def test_what_a_suspended_sandbox_needs_stays_for_ever(world: World) -> None:
    await world.put("a", "b")
    await world.suspend(["a", "b"])
    for _ in range(3):
        world.clock.advance(100 * HOUR)
        assert await world.collector.collect() == 0
    assert world.left() == {"a", "b"}


async def test_what_only_a_deleted_sandbox_needed_goes(world: World) -> None:
    await world.put("a", "b", "c")
    await world.suspend(["a", "b"])
    sandbox_id, snapshot_id = await world.suspend(["b", "c"])
    await world.delete(sandbox_id)
    world.clock.advance(25 * HOUR)
    assert await world.collector.collect() == 2  # a chunk and a manifest
    assert world.left() == {"a", "b"}
    assert await world.store.snapshots.find(snapshot_id) is None


async def test_what_is_younger_than_the_grace_stays_whatever_the_rows_say(world: World) -> None:
    await world.put("a")
    await world.suspend(["b"])
    world.clock.advance(GRACE.total_seconds() - 1)
    await world.put("c")
    assert await world.collector.collect() == 0
    world.clock.advance(1)
    await world.collector.collect()
    assert world.left() == {"c"}


async def test_chunks_of_an_upload_under_way_stay_however_long_it_takes(world: World) -> None:
    sandbox_id, _ = await world.suspend(["a"])
    await world.put("a", "b")
    at = world.clock.now()
    sandbox = await world.store.sandboxes.find(sandbox_id)
    assert sandbox is not None
    changed = await world.store.sandboxes.change(change(sandbox, Kind.SNAPSHOT, at=at))
    assert changed.operation.snapshot_id is not None
    await world.store.snapshots.pin(changed.operation.snapshot_id, world.name("b"), now=at)
    world.clock.advance(100 * HOUR)
    await world.collector.collect()
    assert world.left() == {"a", "b"}


async def test_a_project_loses_nothing_for_another_ones_sake(world: World) -> None:
    await world.put("a")
    await world.put("a", "b", project_id=OTHER_PROJECT)
    await world.suspend(["a"])
    await world.suspend(["b"], project_id=OTHER_PROJECT)
    world.clock.advance(25 * HOUR)
    await world.collector.collect()
    assert world.left() == {"a"}
    assert world.left(OTHER_PROJECT) == {"b"}


async def test_a_store_that_lists_objects_of_another_project_does_not_get_them_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.put("a")
    await world.put("b", project_id=OTHER_PROJECT)
    await world.suspend(["b"], project_id=OTHER_PROJECT)
    world.clock.advance(25 * HOUR)
    list_below = world.objects.list
    monkeypatch.setattr(world.objects, "list", lambda prefix: list_below("projects/"))
    await world.collector._collect(PROJECT)
    assert (world.left(), world.left(OTHER_PROJECT)) == (set(), {"b"})


async def test_objects_with_other_names_are_left_alone(world: World) -> None:
    await world.suspend(["a"])
    strange = f"projects/{PROJECT}/notes.txt"
    await world.objects.put(strange, b"x")
    await world.objects.put("projects/README", b"x")
    world.clock.advance(1000 * HOUR)
    await world.collector.collect()
    assert set(world.objects.objects) == {strange, "projects/README"}


async def test_nothing_can_be_pinned_while_objects_are_deleted_and_everything_afterwards(world: World) -> None:
    sandbox_id, _ = await world.suspend(["a"])
    await world.put("b")
    world.clock.advance(25 * HOUR)
    sandbox = await world.store.sandboxes.find(sandbox_id)
    assert sandbox is not None
    changed = await world.store.sandboxes.change(change(sandbox, Kind.SNAPSHOT, at=world.clock.now()))
    assert changed.operation.snapshot_id is not None
    world.objects.fail("delete", fault=Fault.HANG, times=1)
    collecting = asyncio.ensure_future(world.collector.collect())
    while not world.objects.count("delete"):  # noqa: ASYNC110  nobody tells of it
        await asyncio.sleep(0.001)
    with pytest.raises(Unavailable):
        await world.store.snapshots.pin(changed.operation.snapshot_id, world.name("b"), now=world.clock.now())
    world.objects.heal()
    assert await collecting == 2
    await world.store.snapshots.pin(changed.operation.snapshot_id, world.name("b"), now=world.clock.now())


async def test_what_was_pinned_after_the_listing_began_stays(world: World) -> None:
    """The rows are read again under the lease under which is deleted."""
    sandbox_id, _ = await world.suspend(["a"])
    await world.put("b", "c")
    world.clock.advance(25 * HOUR)
    sandbox = await world.store.sandboxes.find(sandbox_id)
    assert sandbox is not None
    changed = await world.store.sandboxes.change(change(sandbox, Kind.SNAPSHOT, at=world.clock.now()))
    assert changed.operation.snapshot_id is not None
    world.objects.fail("list", fault=Fault.HANG, times=1)
    collecting = asyncio.ensure_future(world.collector.collect())
    while not world.objects.count("list"):  # noqa: ASYNC110  nobody tells of it
        await asyncio.sleep(0.001)
    await world.store.snapshots.pin(changed.operation.snapshot_id, world.name("b"), now=world.clock.now())
    world.objects.heal()
    await collecting
    assert world.left() == {"b"}


async def test_after_a_failed_delete_pins_wait_until_the_store_must_be_done(world: World) -> None:
    sandbox_id, _ = await world.suspend(["a"])
    await world.put("b")
    world.clock.advance(25 * HOUR)
    sandbox = await world.store.sandboxes.find(sandbox_id)
    assert sandbox is not None
    changed = await world.store.sandboxes.change(change(sandbox, Kind.SNAPSHOT, at=world.clock.now()))
    assert changed.operation.snapshot_id is not None
    world.objects.fail("delete")
    assert await world.collector.collect() == 0
    with pytest.raises(Unavailable):
        await world.store.snapshots.pin(changed.operation.snapshot_id, world.name("b"), now=world.clock.now())
    world.objects.heal()
    world.clock.advance(121)
    await world.store.snapshots.pin(changed.operation.snapshot_id, world.name("b"), now=world.clock.now())


async def test_a_failing_node_keeps_the_row_until_it_answers(world: World) -> None:
    sandbox_id, snapshot_id = await world.suspend(["a"])
    await world.put("a")
    await world.delete(sandbox_id)
    world.clock.advance(25 * HOUR)
    world.node.fail("discard", Unavailable("the node is away"))
    with pytest.raises(Unavailable):
        await world.collector.collect()
    found = await world.store.snapshots.find(snapshot_id)
    assert found is not None
    assert found.state is SnapshotState.DELETING
    assert world.left() == {"a"}
    await world.collector.collect()
    assert world.left() == set()


async def test_another_collector_at_work_is_no_failure(world: World) -> None:
    await world.suspend(["a"])
    await world.put("b")
    world.clock.advance(25 * HOUR)
    now = world.clock.now()
    await world.store.snapshots.begin_collection(PROJECT, until=now + timedelta(seconds=60), now=now)
    assert await world.collector.collect() == 0
    world.clock.advance(61)
    assert await world.collector.collect() == 2


async def test_a_long_list_goes_in_several_batches(world: World) -> None:
    await world.suspend(["a"])
    for number in range(1100):
        await world.objects.put(chunk_key(PROJECT, world.name(str(number))), b"x")
    world.clock.advance(25 * HOUR)
    assert await world.collector.collect() == 1100
    assert world.objects.objects == {}


async def test_it_goes_on_after_a_round_that_failed(world: World) -> None:
    sandbox_id, _ = await world.suspend(["a"])
    await world.put("a")
    await world.delete(sandbox_id)
    world.clock.advance(25 * HOUR)
    world.objects.fail("list", times=1)
    running = asyncio.ensure_future(world.collector.run())
    for _ in range(200):
        await asyncio.sleep(0.001)
        if not world.left():
            break
        world.clock.advance(100)
    assert world.left() == set()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running

"""The object store fails, lies and loses; the node's disk is full."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.node.snapshots.harness import META, PAGE, PROJECT, Node, chunks, order, page, pages, ref

from space.core.errors import FailedPrecondition, InsufficientStorage, Unavailable
from space.core.objects import manifest_key
from space.storage.objects import DirectoryObjects
from space.testing.objects import FakeObjects, Fault

pytestmark = pytest.mark.anyio

FILES = {"machine/pages.img": pages(range(1500)), "machine/checkpoint.img": os.urandom(50_000), "journals/a": b"x"}


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_ANSWER])
async def test_a_store_that_fails_at_any_put_leaves_nothing_published_and_the_upload_goes_on_later(
    node: Node, other: Callable[[], Node], objects: FakeObjects, fault: Fault
) -> None:
    _, whole = await node.save(FILES)
    puts = objects.count("put")
    for at in range(1, puts + 1):
        objects.objects.clear()
        made = order()
        await node.images.plan(made, node.source(FILES), META)
        objects.fail("put", at=at, fault=fault)
        with pytest.raises(Unavailable):
            await node.images.upload(made)
        published = [key for key in objects.objects if "/manifests/" in key]
        assert len(published) == (at == puts and fault is Fault.LOSE_ANSWER)
        objects.heal()
        done = chunks(objects)
        objects.calls.clear()
        result = await node.images.upload(made)
        again = {key for method, key in objects.calls if method == "put"}
        assert not again & done  # nothing is sent twice
        assert await other().load(ref(made, result)) == FILES
    assert whole.bytes_uploaded > 0


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_all_that_several_attempts_uploaded_is_counted(
    node: Node, objects: FakeObjects, is_restarted: bool
) -> None:
    made = order()
    await node.images.plan(made, node.source(FILES), META)
    for at in (3, 2):
        objects.fail("put", at=at)
        with pytest.raises(Unavailable):
            await node.images.upload(made)
        if is_restarted:
            node.restarted()
    objects.heal()
    result = await node.images.upload(made)
    assert result.bytes_uploaded == sum(len(data) for data in objects.objects.values())


async def test_a_slow_store_makes_nothing_wrong(node: Node, other: Callable[[], Node], objects: FakeObjects) -> None:
    for method in ("put", "head"):
        made = order()
        await node.images.plan(made, node.source(FILES), META)
        objects.fail(method, fault=Fault.HANG)
        uploading = asyncio.ensure_future(node.images.upload(made))
        await asyncio.sleep(0.05)
        assert not uploading.done()
        objects.heal()
        assert await other().load(ref(made, await uploading)) == FILES


async def test_what_a_store_kept_of_a_chunk_when_it_died_is_not_taken_for_the_chunk(
    node: Node, other: Callable[[], Node], objects: FakeObjects
) -> None:
    made = order()
    await node.images.plan(made, node.source(FILES), META)
    objects.fail("put", at=3)
    with pytest.raises(Unavailable):
        await node.images.upload(made)
    objects.heal()
    parts = chunks(objects)
    assert parts
    for number, key in enumerate(parts):
        objects.objects[key] = objects.objects[key][: -1 if number else 0]
    assert await other().load(ref(made, await node.images.upload(made))) == FILES


async def test_a_cancelled_upload_goes_on_later(node: Node, other: Callable[[], Node], objects: FakeObjects) -> None:
    made = order()
    await node.images.plan(made, node.source(FILES), META)
    objects.fail("put", at=3, fault=Fault.HANG)
    uploading = asyncio.ensure_future(node.images.upload(made))
    await asyncio.sleep(0.05)
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading
    objects.heal()
    assert await other().load(ref(made, await node.images.upload(made))) == FILES


@pytest.mark.parametrize("fault", [Fault.TRUNCATE, Fault.CORRUPT])
async def test_one_bad_answer_is_asked_again(
    node: Node, other: Callable[[], Node], objects: FakeObjects, fault: Fault
) -> None:
    made, _ = await node.save(FILES)
    for at in range(1, len(objects.objects) + 1):
        objects.fail("get", at=at, times=1, fault=fault)
        assert await other().load(made) == FILES


@pytest.mark.parametrize("harm", ["cut", "turned bit", "empty", "gone", "another chunk"])
async def test_any_damaged_object_is_noticed_and_nothing_of_the_moment_is_kept(
    node: Node, other: Callable[[], Node], objects: FakeObjects, harm: str
) -> None:
    made, _ = await node.save(FILES)
    whole = dict(objects.objects)
    for key, data in whole.items():
        objects.objects = dict(whole)
        if harm == "cut":
            objects.objects[key] = data[:-1]
        elif harm == "turned bit":
            objects.objects[key] = data[:40] + bytes([data[40] ^ 4]) + data[41:]
        elif harm == "empty":
            objects.objects[key] = b""
        elif harm == "gone":
            del objects.objects[key]
        else:
            objects.objects[key] = next(value for value in whole.values() if value != data)
        far = other()
        with pytest.raises(FailedPrecondition, match=f"{made.snapshot_id} is damaged"):
            await far.load(made)
        assert far.left() == set()
        objects.objects = dict(whole)
        assert await far.load(made) == FILES


@pytest.mark.parametrize("kind", ["chunks", "manifests"])
async def test_whoever_writes_to_the_store_cannot_fill_the_nodes_memory_with_huge_objects(
    node: Node, other: Callable[[], Node], objects: FakeObjects, kind: str
) -> None:
    """Eight chunks are on their way at once: without a limit of their own they could take two gigabytes."""
    made, _ = await node.save(FILES)
    for key in [key for key in objects.objects if f"/{kind}/" in key]:
        objects.objects[key] = objects.objects[key] + bytes(3 << 20 if kind == "chunks" else (256 << 20) + 1)
    got: list[int] = []
    get = objects.get

    async def measured(key: str, **how: int) -> bytes:
        data = await get(key, **how)
        got.append(len(data))
        return data

    objects.get = measured  # type: ignore[method-assign]
    with pytest.raises(FailedPrecondition, match="larger than it was written"):
        await other().load(made)
    assert max(got, default=0) < 2 << 20


async def test_a_failing_store_while_opening_leaves_nothing_and_opens_later(
    node: Node, other: Callable[[], Node], objects: FakeObjects
) -> None:
    made, _ = await node.save(FILES)
    for at in range(1, len(objects.objects) + 1):
        far = other()
        objects.fail("get", at=at)
        with pytest.raises(Unavailable):
            await far.load(made)
        assert far.left() == set()
        objects.heal()
        assert await far.load(made) == FILES


async def test_a_base_whose_chunks_are_lost_fails_one_upload_and_no_more(
    node: Node, other: Callable[[], Node], objects: FakeObjects
) -> None:
    first, _ = await node.save(FILES)
    for key in chunks(objects):
        del objects.objects[key]
    after = {**FILES, "journals/a": b"y"}
    with pytest.raises(FailedPrecondition, match="try again"):
        await node.save(after, first)
    second, _ = await node.save(after, first)
    assert await other().load(second) == after


async def test_a_damaged_base_is_done_without(node: Node, other: Callable[[], Node], objects: FakeObjects) -> None:
    first, _ = await node.save(FILES)
    objects.objects[manifest_key(PROJECT, first.manifest)] = b"garbage"
    far = other()
    second, result = await far.save(FILES, first)
    assert result.bytes_new > 1500 * PAGE
    assert await other().load(second) == FILES


async def test_files_that_changed_after_the_plan_are_not_published(node: Node, objects: FakeObjects) -> None:
    for harm in ("changed", "shorter", "gone"):
        made = order()
        await node.images.plan(made, node.source(FILES), META)
        file = node.directory / "snapshots/staging" / made.snapshot_id / "files/machine/pages.img"
        if harm == "changed":
            with file.open("r+b") as opened:
                opened.write(page("something else"))
        elif harm == "shorter":
            os.truncate(file, 100)
        else:
            file.unlink()
        objects.objects.clear()
        with pytest.raises(Exception) as caught:  # noqa: PT011  which of ours depends on the harm
            await node.images.upload(made)
        assert type(caught.value).__module__ == "space.core.errors"
        assert not [key for key in objects.objects if "/manifests/" in key]


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "none", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path, leave: int) -> None:
    """Leave so many bytes free."""
    free = os.statvfs(disk).f_bavail * 4096
    if free > leave:
        (disk / "ballast").write_bytes(bytes(free - leave))


@pytest.mark.root
async def test_a_disk_that_is_full_while_opening_is_told_and_nothing_is_left(
    small_disk: Path, node: Node, objects: FakeObjects
) -> None:
    made, _ = await node.save({"pages.img": pages(range(1500))})
    far = Node(small_disk / "node", objects)
    fill(small_disk, 3 << 20)
    with pytest.raises(InsufficientStorage, match="disk"):
        await far.load(made)
    assert far.left() == set()
    (small_disk / "ballast").unlink()
    assert (await far.load(made))["pages.img"] == pages(range(1500))


@pytest.mark.root
async def test_a_full_disk_makes_room_of_what_is_only_cached(
    small_disk: Path, node: Node, objects: FakeObjects
) -> None:
    far = Node(small_disk / "node", objects, cache_bytes=5 << 20)
    for start in range(0, 10_000, 1000):
        files = {"pages.img": pages(range(start, start + 1000))}
        made, _ = await node.save(files)
        assert await far.load(made) == files


@pytest.mark.root
async def test_a_disk_that_is_full_while_planning_is_told_and_nothing_is_left(
    small_disk: Path, objects: FakeObjects
) -> None:
    node = Node(small_disk / "node", objects)
    source = node.source({"pages.img": pages(range(1000))})
    fill(small_disk, 0)
    with pytest.raises(InsufficientStorage, match="snapshot"):
        await node.images.plan(order(), source, META)
    assert node.left() == set()
    assert not source.exists()


@pytest.mark.root
async def test_an_object_store_that_is_full_is_told_and_the_upload_goes_on_when_there_is_room(
    small_disk: Path, tmp_path: Path
) -> None:
    node = Node(tmp_path / "local", DirectoryObjects(small_disk / "objects"))
    files = {"pages.img": os.urandom(3 << 20)}
    made = order()
    await node.images.plan(made, node.source(files), META)
    fill(small_disk, 1 << 20)
    with pytest.raises(InsufficientStorage, match="object store"):
        await node.images.upload(made)
    (small_disk / "ballast").unlink()
    result = await node.images.upload(made)
    assert await Node(tmp_path / "far", node.objects).load(ref(made, result)) == files

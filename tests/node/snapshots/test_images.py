"""Moments go to the object store and come back as they were."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from tests.node.snapshots.harness import (
    KEY,
    META,
    OTHER_PROJECT,
    PAGE,
    PROJECT,
    Node,
    chunks,
    contents,
    order,
    page,
    pages,
    ref,
)  # fmt: skip

from space.core.errors import FailedPrecondition, InvalidRequest, NotFound
from space.core.objects import chunk_key, manifest_key
from space.core.snapshot import SnapshotRef
from space.node.snapshots import Images
from space.testing.objects import FakeObjects

pytestmark = pytest.mark.anyio

FILES = {
    "machine/pages.img": pages(range(2000)) + bytes(50 * PAGE) + pages(range(900)),
    "machine/checkpoint.img": os.urandom(870_123),
    "machine/pages_meta.img": b"meta" * 999,
    "journals/ses1": b"output\n" * 10,
    "machine/empty": b"",
}


async def test_a_moment_comes_back_on_another_node(node: Node, other: Callable[[], Node]) -> None:
    made, result = await node.save(FILES)
    assert result.bytes_read == sum(map(len, FILES.values()))
    assert await other().load(made) == FILES


async def test_pages_of_zeros_take_no_room_anywhere(node: Node, other: Callable[[], Node]) -> None:
    files = {"pages.img": bytes(64 << 20) + page(1) + bytes(1000)}
    made, result = await node.save(files)
    assert result.bytes_new == PAGE
    assert result.bytes_uploaded < 10_000
    woken = other()
    async with woken.images.open(made) as image:
        assert contents(image.path) == files
        assert (image.path / "pages.img").stat().st_blocks * 512 < 100_000


async def test_a_second_moment_uploads_only_what_changed(node: Node, other: Callable[[], Node]) -> None:
    first, _ = await node.save(FILES)
    memory = bytearray(FILES["machine/pages.img"])
    for number in range(0, 2000, 40):
        memory[number * PAGE : (number + 1) * PAGE] = page("changed", number)
    after = {**FILES, "machine/pages.img": bytes(memory), "journals/ses1": b"output\n" * 11}
    before = chunks(node.objects)
    second, result = await node.save(after, first)
    assert result.bytes_new == 51 * PAGE
    assert len(chunks(node.objects) - before) <= 4
    assert await other().load(second) == after
    assert await other().load(first) == FILES


async def test_an_unchanged_machine_uploads_nothing_but_the_manifest(node: Node) -> None:
    first, _ = await node.save(FILES)
    before = set(node.objects.objects)
    second, result = await node.save(FILES, first)
    assert set(node.objects.objects) - before == {manifest_key(PROJECT, second.manifest)}
    assert (result.bytes_new, result.bytes_uploaded < 20_000) == (0, True)


async def test_a_node_that_never_saw_the_base_uploads_only_what_changed_too(
    node: Node, other: Callable[[], Node]
) -> None:
    first, _ = await node.save(FILES)
    second, result = await other().save({**FILES, "machine/empty": page("new")}, first)
    assert result.bytes_new == PAGE
    assert (await other().load(second))["machine/empty"] == page("new")


async def test_a_plan_names_all_that_the_store_must_have_before_it_is_published(
    node: Node, objects: FakeObjects
) -> None:
    made = order()
    plan = await node.images.plan(made, node.source(FILES), META)
    assert objects.calls == []
    result = await node.images.upload(made)
    assert len(set(plan.chunks)) == len(plan.chunks)
    manifest = bytes.fromhex(result.manifest)
    names = {chunk_key(PROJECT, name) for name in plan.chunks if name != manifest}
    assert {*names, manifest_key(PROJECT, result.manifest)} == set(objects.objects)
    assert manifest in plan.chunks


async def test_asking_twice_does_everything_once(node: Node, objects: FakeObjects) -> None:
    made = order()
    assert await node.images.planned(made) is None
    first = await node.images.plan(made, node.source(FILES), META)
    second = await node.images.plan(made, node.source({"another": b"moment"}), {})
    assert second == first == await node.images.planned(made)
    assert not (node.directory / "checkpoint").exists()
    result = await node.images.upload(made)
    count = objects.count("put")
    assert await node.images.upload(made) == result
    assert objects.count("put") == count
    assert await node.images.plan(made, node.source({"another": b"moment"}), {}) == first
    assert await node.load(ref(made, result)) == FILES


async def test_a_restarted_node_goes_on_with_a_plan(node: Node, other: Callable[[], Node]) -> None:
    made = order()
    plan = await node.images.plan(made, node.source(FILES), META)
    again = node.restarted()
    assert await again.planned(made) == plan
    result = await again.upload(made)
    assert await node.restarted().upload(made) == result
    assert await other().load(ref(made, result)) == FILES


async def test_a_restarted_host_does_not_trust_what_it_did_not_sync(node: Node, objects: FakeObjects) -> None:
    planned, uploaded = order(), order()
    await node.images.plan(planned, node.source(FILES), META)
    await node.images.plan(uploaded, node.source(FILES), META)
    result = await node.images.upload(uploaded)
    root = node.directory / "snapshots"
    for note in (root / f"staging/{planned.snapshot_id}/plan.json", root / f"images/{result.manifest}/image.json"):
        words = json.loads(note.read_text())
        note.write_text(json.dumps({**words, "boot_id": "another"}))
    again = node.restarted()
    with pytest.raises(NotFound):
        await again.upload(planned)
    objects.calls.clear()
    assert await node.load(ref(uploaded, result)) == FILES
    assert objects.count("get") > 1


async def test_uploading_without_a_plan_is_not_found(node: Node) -> None:
    with pytest.raises(NotFound, match="checkpoint"):
        await node.images.upload(order())


async def test_what_was_just_uploaded_opens_without_the_store(node: Node, objects: FakeObjects) -> None:
    made, _ = await node.save(FILES)
    objects.fail("get")
    inodes = {path: path.stat().st_ino for path in (node.directory / "snapshots").rglob("*.img")}
    assert await node.load(made) == FILES
    assert {path: path.stat().st_ino for path in (node.directory / "snapshots").rglob("*.img")} == inodes
    assert await node.images.meta_of(made) == META


async def test_meta_is_told_without_bringing_the_files_here(
    node: Node, other: Callable[[], Node], objects: FakeObjects
) -> None:
    made, _ = await node.save(FILES)
    far = other()
    objects.calls.clear()
    assert await far.images.meta_of(made) == META
    assert objects.calls == [("get", manifest_key(PROJECT, made.manifest))]
    assert far.left() == set()


async def test_two_who_open_at_once_share_one_download(
    node: Node, other: Callable[[], Node], objects: FakeObjects
) -> None:
    made, _ = await node.save(FILES)
    far = other()
    objects.calls.clear()
    assert await asyncio.gather(*(far.load(made) for _ in range(5))) == [FILES] * 5
    gets = [key for method, key in objects.calls if method == "get"]
    assert len(gets) == len(set(gets))


async def test_an_opener_that_goes_away_leaves_the_download_to_the_next(
    node: Node, other: Callable[[], Node], objects: FakeObjects
) -> None:
    made, _ = await node.save(FILES)
    far = other()
    impatient = asyncio.ensure_future(far.load(made))
    while objects.count("get") < 3:  # noqa: ASYNC110  nobody tells of it
        await asyncio.sleep(0)
    patient = asyncio.ensure_future(far.load(made))
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    assert await patient == FILES


async def test_requests_are_many_at_once_and_not_too_many(
    node: Node, other: Callable[[], Node], objects: FakeObjects
) -> None:
    made, _ = await node.save({"pages.img": pages(range(8000))})
    assert 1 < objects.busiest <= 8
    objects.busiest = 0
    await other().load(made)
    assert 1 < objects.busiest <= 8


# The cache


async def test_the_least_recently_opened_images_go_first(tmp_path: Path, objects: FakeObjects) -> None:
    node = Node(tmp_path / "node", objects, cache_bytes=5 << 19)
    made = [(await node.save({"pages.img": pages(range(start, start + 250))}))[0] for start in (0, 1000, 2000)]
    assert cached(node, made) == [False, True, True]
    await node.load(made[1])
    await node.load(made[0])
    assert cached(node, made) == [True, True, False]
    node.restarted()
    assert cached(node, made) == [True, True, False]
    await node.load(made[2])
    assert cached(node, made) == [True, False, True]


def cached(node: Node, made: Sequence[SnapshotRef]) -> list[bool]:
    return [(node.directory / "snapshots/images" / each.manifest).exists() for each in made]


async def test_an_open_image_stays_and_goes_when_it_is_closed_if_there_is_no_room(
    tmp_path: Path, objects: FakeObjects
) -> None:
    node = Node(tmp_path / "node", objects, cache_bytes=0)
    made, _ = await node.save(FILES)
    async with node.images.open(made) as image:
        await node.save({"pages.img": pages(range(5000, 5600))})
        assert contents(image.path) == FILES
    await node.images.sweep([made.snapshot_id])
    assert {name for name in node.left() if name.startswith("images/")} == set()


@pytest.mark.parametrize("harm", ["shorter", "other content", "gone", "one more", "a link"])
async def test_an_image_that_somebody_touched_is_not_used(node: Node, objects: FakeObjects, harm: str) -> None:
    made, _ = await node.save(FILES)
    file = node.directory / "snapshots/images" / made.manifest / "files/machine/pages.img"
    if harm == "shorter":
        os.truncate(file, 5000)
    elif harm == "other content":
        with file.open("r+b") as opened:
            opened.write(b"other")
        os.utime(file, ns=(time.time_ns(), time.time_ns()))
    elif harm == "gone":
        file.unlink()
    elif harm == "one more":
        (file.parent / "more").write_bytes(b"x")
    else:
        (file.parent / "link").symlink_to("/etc/passwd")
    assert await node.load(made) == FILES
    assert objects.count("get") > 1


async def test_discarding_leaves_nothing_here_and_everything_in_the_store(
    node: Node, other: Callable[[], Node], objects: FakeObjects
) -> None:
    made, _ = await node.save(FILES)
    planned = order()
    await node.images.plan(planned, node.source(FILES), META)
    before = set(objects.objects)
    for snapshot_id in (made.snapshot_id, planned.snapshot_id, order().snapshot_id):
        await node.images.discard(snapshot_id)
        await node.images.discard(snapshot_id)
    await node.images.aclose()
    assert node.left() == set()
    assert set(objects.objects) == before
    with pytest.raises(NotFound):
        await node.images.upload(planned)
    assert await other().load(made) == FILES


async def test_discarding_an_open_image_waits_until_it_is_closed(node: Node) -> None:
    made, _ = await node.save(FILES)
    async with node.images.open(made) as image:
        await node.images.discard(made.snapshot_id)
        assert contents(image.path) == FILES
    await node.images.aclose()
    assert node.left() == set()


async def test_discarding_ends_an_upload_under_way(node: Node, objects: FakeObjects) -> None:
    made = order()
    await node.images.plan(made, node.source({"pages.img": pages(range(8000))}), META)
    uploading = asyncio.ensure_future(node.images.upload(made))
    while not objects.count("put"):  # noqa: ASYNC110  nobody tells of it
        await asyncio.sleep(0)
    await node.images.discard(made.snapshot_id)
    with pytest.raises(NotFound, match="not wanted"):
        await uploading
    assert not [key for key in objects.objects if "/manifests/" in key]
    assert node.left() == set()


async def test_a_sweep_keeps_what_it_is_told_to(node: Node) -> None:
    kept, _ = await node.save(FILES)
    await node.save({"pages.img": pages(range(10))})
    planned = order()
    await node.images.plan(planned, node.source(FILES), META)
    await node.images.sweep([kept.snapshot_id])
    assert node.left() == {f"images/{kept.manifest}", f"results/{kept.snapshot_id}.json"}


# Whom what may tell


async def test_no_secret_is_on_the_disk_or_in_the_store_unsealed(node: Node, objects: FakeObjects) -> None:
    made = order()
    await node.images.plan(made, node.source({"pages.img": page(1)}), META)
    await node.images.upload(made)
    for data in [*objects.objects.values(), *contents(node.directory).values()]:
        assert b"very-secret" not in data
        assert KEY not in data
    assert all(path.stat().st_mode & 0o077 == 0 for path in (node.directory / "snapshots").iterdir())


async def test_another_projects_key_opens_nothing_even_what_is_here(node: Node, other: Callable[[], Node]) -> None:
    made, _ = await node.save(FILES)
    stolen = replace(made, key=os.urandom(32))
    for place in (node, other()):
        with pytest.raises(FailedPrecondition) as caught:
            await place.load(stolen)
        assert "very-secret" not in str(caught.value)
        with pytest.raises(FailedPrecondition):
            await place.images.meta_of(stolen)
    assert await node.load(made) == FILES


async def test_whoever_reads_the_store_cannot_confirm_a_guess_of_what_a_guest_has_in_memory(
    node: Node, objects: FakeObjects
) -> None:
    memory = pages(range(300))
    await node.save({"machine/pages.img": memory})
    ours = {key.rpartition("/")[2] for key in objects.objects}
    guesses = [memory, memory[: 256 * PAGE], memory[256 * PAGE :]]
    assert not ours & {sha256(guess).hexdigest() for guess in guesses}
    await node.save({"machine/pages.img": memory}, project_id=OTHER_PROJECT, key=os.urandom(32))
    theirs = {key.rpartition("/")[2] for key in objects.objects if OTHER_PROJECT in key}
    assert len(theirs) == len(ours)
    assert not ours & theirs


async def test_a_moment_of_another_project_is_no_base(node: Node, objects: FakeObjects) -> None:
    first, _ = await node.save(FILES)
    _, result = await node.save(FILES, first, project_id=OTHER_PROJECT, key=os.urandom(32))
    assert result.bytes_new > 2000 * PAGE
    assert len([key for key in objects.objects if OTHER_PROJECT in key]) == len(objects.objects) / 2


async def test_chunks_of_another_project_do_not_open_under_ours(
    node: Node, other: Callable[[], Node], objects: FakeObjects
) -> None:
    made, _ = await node.save(FILES)
    await other().save(FILES, project_id=OTHER_PROJECT, key=os.urandom(32))
    ours, theirs = ([key for key in chunks(objects) if each in key] for each in (PROJECT, OTHER_PROJECT))
    for key, another in zip(ours, theirs, strict=True):
        objects.objects[key] = objects.objects[another]
    far = other()
    with pytest.raises(FailedPrecondition, match="another project"):
        await far.load(made)
    assert far.left() == set()


@pytest.mark.parametrize("kind", ["link", "directory link", "pipe", "strange name"])
async def test_files_that_are_none_are_refused_and_nothing_is_left(node: Node, kind: str) -> None:
    source = node.source({"pages.img": page(1)})
    if kind == "link":
        (source / "shadow").symlink_to("/etc/shadow")
    elif kind == "directory link":
        (source / "etc").symlink_to("/etc")
    elif kind == "pipe":
        os.mkfifo(source / "pipe")
    else:
        (source / "..hidden").write_bytes(b"x")
    with pytest.raises(InvalidRequest):
        await node.images.plan(order(), source, META)
    assert node.left() == set()
    assert not source.exists()


async def test_nothing_of_an_interrupted_plan_is_mixed_into_the_next(node: Node) -> None:
    made = order()
    half = node.directory / "snapshots/staging" / made.snapshot_id / "files"
    half.mkdir(parents=True)
    (half / "old").write_bytes(b"of the first attempt")
    await node.images.plan(made, node.source(FILES), META)
    result = await node.images.upload(made)
    assert await node.load(ref(made, result)) == FILES


def test_what_was_being_downloaded_when_the_node_died_is_removed(node: Node, objects: FakeObjects) -> None:
    left = node.directory / "snapshots/incoming/abc/files"
    left.mkdir(parents=True)
    Images(node.directory / "snapshots", objects, cache_bytes=0)
    assert node.left() == set()


async def test_a_plan_tells_its_moment_whenever_it_is_told_of(node: Node) -> None:
    made, at = order(), datetime(2026, 12, 1, 9, 30, 0, 5, tzinfo=UTC)
    meta = {**META, "taken_at": at.isoformat()}
    assert (await node.images.plan(made, node.source(FILES), meta)).taken_at == at
    for _ in range(2):  # of the staged files, and after these have become an image
        again = await node.images.planned(made)
        assert again is not None
        assert again.taken_at == at
        await node.images.upload(made)

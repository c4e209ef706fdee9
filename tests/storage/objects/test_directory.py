"""Objects as files."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from space.core.errors import InsufficientStorage, Unavailable
from space.core.ports import ObjectStore
from space.storage.objects import DirectoryObjects
from space.testing.conformance.objects import ObjectStoreConformance, keys

pytestmark = pytest.mark.anyio


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return DirectoryObjects(tmp_path / "objects")


class TestDirectory(ObjectStoreConformance):
    """The suite."""


@pytest.mark.parametrize("key", ["../outside", "a/../../outside", "/etc/passwd", "a//b", "", "a/./b", ".incoming/x"])
async def test_a_key_cannot_lead_out_of_the_directory(objects: ObjectStore, key: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a key"):
        await objects.put(key, b"x")
    with pytest.raises(ValueError, match="not a key"):
        await objects.delete([key])
    assert not (tmp_path / "outside").exists()


async def test_only_the_owner_can_read_objects(objects: ObjectStore, tmp_path: Path) -> None:
    await objects.put("a/b/c", b"x")
    modes = [path.stat().st_mode & 0o077 for path in tmp_path.rglob("*")]
    assert modes == [0] * 5  # the root, `.incoming`, two directories and the file


async def test_what_a_killed_writer_left_is_never_seen_and_goes_later(objects: ObjectStore, tmp_path: Path) -> None:
    left, young = (tmp_path / "objects/.incoming" / name for name in ("left", "young"))
    left.write_bytes(b"half an obj")
    young.write_bytes(b"being written")
    os.utime(left, (time.time() - 7200, time.time() - 7200))
    assert await keys(objects, "a/") == set()
    again = DirectoryObjects(tmp_path / "objects")
    assert (left.exists(), young.exists()) == (False, True)
    await again.put("a/1", b"x")
    assert await keys(again, "a/") == {"a/1"}


async def test_a_store_that_cannot_be_written_is_unavailable_by_name(tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("a file")
    with pytest.raises(Unavailable, match="objects"):
        DirectoryObjects(tmp_path / "objects")


async def test_an_object_in_the_way_of_a_directory_is_unavailable(objects: ObjectStore) -> None:
    await objects.put("a", b"x")
    with pytest.raises(Unavailable, match="cannot write"):
        await objects.put("a/b", b"x")


@pytest.mark.root
async def test_a_full_disk_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", str(disk)], check=True)
    try:
        objects = DirectoryObjects(disk / "objects")
        with pytest.raises(InsufficientStorage, match="full"):
            await objects.put("a/1", bytes(2 << 20))
        assert await objects.head("a/1") is None
        await objects.put("a/2", bytes(500_000))
        assert list((disk / "objects/.incoming").iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


_WRITER = """
import asyncio, sys
from pathlib import Path
from space.storage.objects import DirectoryObjects
async def main():
    objects = DirectoryObjects(Path(sys.argv[1]))
    await objects.put("a/0", b"x" * 10)
    print("ready", flush=True)
    for number in range(1, 10_000):
        await objects.put(f"a/{number % 5}", bytes([number % 251]) * 300_000)
asyncio.run(main())
"""


@pytest.mark.live
async def test_a_killed_writer_leaves_whole_objects_only(tmp_path: Path) -> None:
    for _ in range(5):
        argv = [sys.executable, "-c", _WRITER, str(tmp_path / "objects")]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            await asyncio.sleep(0.05)
            writer.kill()
        objects = DirectoryObjects(tmp_path / "objects")
        for key in await keys(objects, "a/"):
            data = await objects.get(key)
            assert len(data) in (10, 300_000)
            assert len(set(data)) == 1

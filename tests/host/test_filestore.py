"""Filesystems of limited size: empty, exact, gone without a trace."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from space.core.errors import InsufficientStorage
from space.host import filestore, linux
from space.host.filestore import FileStores, copy_sparse

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[FileStores]:
    made = FileStores(tmp_path / "stores")
    yield made
    await made.aclose()


def devices(stores: FileStores) -> list[Path]:
    """Return the loop devices whose files lie in this directory."""
    found = Path("/sys/block").glob("loop*/loop/backing_file")
    return [path for path in found if str(stores.directory) in path.read_text()]


@pytest.mark.root
@pytest.mark.parametrize("disk_mib", [64, 512, 2048])
async def test_a_filestore_is_empty_and_has_the_size_asked_for(stores: FileStores, disk_mib: int) -> None:
    path = await stores.create(1, disk_mib)
    assert list(path.iterdir()) == []
    size = os.statvfs(path)
    assert disk_mib <= size.f_bavail * size.f_frsize / (1 << 20) <= disk_mib + 4


@pytest.mark.root
async def test_an_empty_filestore_costs_the_host_next_to_nothing(stores: FileStores) -> None:
    await stores.create(1, 2048)
    (template,) = stores.directory.glob("*.template")
    assert template.stat().st_blocks * 512 < 2 << 20


@pytest.mark.root
async def test_writing_more_than_its_size_fails(stores: FileStores) -> None:
    path = await stores.create(1, 64)
    with pytest.raises(OSError, match="No space left"):
        (path / "big").write_bytes(bytes(80 << 20))


@pytest.mark.root
async def test_a_removed_filestore_leaves_no_mount_device_or_file(stores: FileStores) -> None:
    path = await stores.create(1, 64)
    (path / "secret").write_text("x" * 100_000)
    await stores.remove(1)
    await stores.remove(1)
    assert not path.exists()
    assert devices(stores) == []
    assert [entry.name for entry in stores.directory.iterdir() if not entry.name.endswith(".template")] == []


@pytest.mark.root
async def test_creating_again_gives_an_empty_one(stores: FileStores) -> None:
    path = await stores.create(1, 64)
    (path / "secret").touch()
    assert list((await stores.create(1, 64)).iterdir()) == []
    assert len(devices(stores)) == 1


@pytest.mark.root
async def test_one_that_is_in_use_is_removed_and_its_device_goes_with_the_user(stores: FileStores) -> None:
    path = await stores.create(1, 64)
    with (path / "open").open("w"):
        await stores.remove(1)
        assert not path.exists()
    assert devices(stores) == []


@pytest.mark.root
async def test_a_sweep_removes_all_but_what_is_kept_also_after_a_restart(stores: FileStores) -> None:
    for index in (1, 2, 3):
        await stores.create(index, 64)
    (stores.path(2) / "kept").touch()
    (stores.directory / "4").mkdir()  # killed between mkdir and mount
    restarted = FileStores(stores.directory)
    assert await restarted.sweep({2}) == [1, 3, 4]
    assert (stores.path(2) / "kept").exists()
    assert len(devices(stores)) == 1


@pytest.mark.root
async def test_a_template_that_was_half_made_is_made_anew(stores: FileStores) -> None:
    await stores.create(1, 64)
    (template,) = stores.directory.glob("*.template")
    template.unlink()
    template.with_suffix(".new").write_bytes(b"half")
    await stores.create(2, 64)
    assert template.exists()


@pytest.mark.root
async def test_a_caller_that_leaves_while_it_is_made_leaves_no_mount_and_no_device(stores: FileStores) -> None:
    await stores.create(1, 64)
    await stores.remove(1)
    for turns in range(4):
        making = asyncio.create_task(stores.create(1, 64))
        for _ in range(turns):
            await asyncio.sleep(0)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        await asyncio.sleep(0.1)  # a thread that went on would have made it by then
        assert not stores.path(1).exists()
        assert devices(stores) == []


@pytest.mark.root
async def test_of_many_sizes_only_the_images_used_last_are_kept(
    stores: FileStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filestore, "KEPT_TEMPLATES", 2)
    for disk_mib in (64, 65, 64, 66):
        await stores.create(1, disk_mib)
    sizes = {path.name.split("-")[1] for path in stores.directory.glob("*.template")}
    assert sizes == {str(disk_mib + filestore.spare_mib(disk_mib)) for disk_mib in (64, 66)}


@pytest.mark.root
async def test_a_size_that_the_host_cannot_hold_is_refused_and_leaves_nothing(stores: FileStores) -> None:
    with pytest.raises(InsufficientStorage):
        await stores.create(1, 1 << 42)
    assert list(stores.directory.iterdir()) == []


@pytest.mark.root
async def test_a_full_host_is_told_before_anything_is_made(stores: FileStores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filestore, "HEADROOM_MIB", 1 << 40)
    with pytest.raises(InsufficientStorage):
        await stores.create(1, 64)
    assert devices(stores) == []


@pytest.mark.root
async def test_a_host_that_fills_up_in_between_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = tmp_path / "small"
    small.mkdir()
    linux.mount("none", small, "tmpfs", 0, "size=1m")
    monkeypatch.setattr(filestore, "HEADROOM_MIB", 0)
    stores = FileStores(small / "stores")
    try:
        await stores.create(1, 64)
        (small / "filler").write_bytes(bytes(os.statvfs(small).f_bavail * os.statvfs(small).f_frsize))
        with pytest.raises(InsufficientStorage):
            await stores.create(2, 64)
        assert not stores.path(2).exists()
        assert len(devices(stores)) == 1
    finally:
        await stores.aclose()
        linux.umount(small)


@pytest.mark.root
async def test_nobody_but_root_may_look_into_filestores(stores: FileStores) -> None:
    await stores.create(1, 64)
    assert stores.directory.stat().st_mode & 0o077 == 0


def test_a_sparse_copy_has_the_data_and_keeps_the_holes(tmp_path: Path) -> None:
    with (tmp_path / "from").open("w+b") as source, (tmp_path / "to").open("w+b") as target:
        source.truncate(64 << 20)
        for offset in (0, 8 << 20, (64 << 20) - 5):
            source.seek(offset)
            source.write(b"hello")
        source.flush()
        copy_sparse(source.fileno(), target.fileno())
        assert (tmp_path / "to").stat().st_size == 64 << 20
        assert (tmp_path / "to").stat().st_blocks * 512 < 1 << 20
        target.seek(8 << 20)
        assert target.read(5) == b"hello"
        assert (tmp_path / "to").read_bytes() == (tmp_path / "from").read_bytes()


@pytest.mark.root
async def test_the_directory_can_be_deleted_once_all_filestores_are_removed(stores: FileStores) -> None:
    await stores.create(1, 64)
    await stores.sweep(())
    shutil.rmtree(stores.directory)
    await FileStores(stores.directory).create(1, 64)

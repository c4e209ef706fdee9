"""A disk that is full while a sandbox is suspended or woken: that is said, nothing is lost and nothing left."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.guests import ASK, COUNTER, python
from tests.e2e.instance import Instance

from space.sdk import Sandbox, SpaceError

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

MIB = 1 << 20


@pytest.fixture
def on_small_disks(tmp_path: Path, templates_dir: Path) -> Iterator[Callable[..., Instance]]:
    """Make an instance some of whose directories are disks of 96 MiB."""
    undo = contextlib.ExitStack()

    def make(*names: str, **settings: str) -> Instance:
        data_dir = tmp_path / "space"
        for name in names:
            disk = data_dir / name
            disk.mkdir(mode=0o700, parents=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m,mode=700", "none", str(disk)], check=True)
            undo.callback(subprocess.run, ["umount", str(disk)], check=True)
        instance = Instance(data_dir, templates_dir, {"SPACE_TEMPLATE_IMAGES": "0", **settings})
        undo.callback(instance.remove)
        instance.up()
        return instance

    with undo:
        yield make


@contextlib.contextmanager
def filled(disk: Path, *, leave: int) -> Iterator[None]:
    """Take all room but `leave` bytes."""
    ballast = disk / "ballast"
    room = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(4096, room.f_bavail * room.f_frsize - leave))
    try:
        yield
    finally:
        ballast.unlink()


def half_made(instance: Instance) -> list[str]:
    """Name what is left of moments that did not come about."""
    node = instance.data_dir / "node"
    found = [*node.glob("staging/*"), *node.glob("images/staging/*"), *node.glob("images/incoming/*")]
    objects = instance.data_dir / "objects"
    found += [*(objects / ".incoming").iterdir(), *objects.glob("projects/*/manifests/*")]
    return [str(path.relative_to(instance.data_dir)) for path in found]


def counting(sandbox: Sandbox) -> Callable[[], int]:
    """Start a counter; return what asks it."""
    sandbox.start(["python3", "-c", COUNTER], detached=True)
    return lambda: int(python(sandbox, ASK))


@pytest.mark.parametrize("leave", [0, 4 * MIB], ids=["nothing", "4 MiB"])
def test_a_suspend_onto_a_full_disk_is_told_and_the_sandbox_goes_on_running(
    on_small_disks: Callable[..., Instance], leave: int
) -> None:
    instance = on_small_disks("node")
    with instance.client() as client, Sandbox.create("base", client=client) as sandbox:
        count = counting(sandbox)
        before = count()
        with filled(instance.data_dir / "node", leave=leave), pytest.raises(SpaceError) as caught:
            sandbox.suspend()
        assert caught.value.code == "insufficient_storage"
        assert (sandbox.refresh().state, sandbox.info.operation_id) == ("running", None)
        assert count() > before, "nothing of it stood still for good"
        assert half_made(instance) == []
        sandbox.suspend()
        assert sandbox.wake().state == "running"
        assert count() > before
        sandbox.kill()


def test_a_suspend_into_a_full_object_store_is_told_and_the_sandbox_goes_on_running(
    on_small_disks: Callable[..., Instance],
) -> None:
    instance = on_small_disks("objects")
    with instance.client() as client, Sandbox.create("base", client=client) as sandbox:
        count = counting(sandbox)
        before = count()
        with filled(instance.data_dir / "objects", leave=MIB), pytest.raises(SpaceError) as caught:
            sandbox.suspend()
        assert caught.value.code == "insufficient_storage"
        assert (sandbox.refresh().state, sandbox.info.operation_id) == ("running", None)
        assert count() > before
        assert half_made(instance) == []
        sandbox.suspend()
        assert sandbox.wake().state == "running"
        assert count() > before
        sandbox.kill()


def test_a_wake_whose_download_fills_the_disk_leaves_it_suspended_and_works_when_there_is_room(
    on_small_disks: Callable[..., Instance],
) -> None:
    instance = on_small_disks("node", SPACE_SNAPSHOT_CACHE_MIB="0")
    with instance.client() as client, Sandbox.create("base", client=client) as sandbox:
        count = counting(sandbox)
        before = count()
        sandbox.suspend()
        for leave in (4 * MIB, 0):
            with filled(instance.data_dir / "node", leave=leave), pytest.raises(SpaceError) as caught:
                sandbox.wake()
            assert caught.value.code == "insufficient_storage"
            assert (sandbox.refresh().state, sandbox.info.operation_id) == ("suspended", None)
            assert [name for name in half_made(instance) if not name.startswith("objects/")] == []
            assert instance.machine_pids(sandbox.id) == []
        assert sandbox.wake().state == "running"
        assert count() > before
        sandbox.kill()

"""`space down --machines` leaves the data directory and nothing else."""

from pathlib import Path

import pytest

from space.app import data_dir
from space.app.teardown import tear_down
from space.config import Settings
from space.core.sandbox import Resources
from space.host import netns
from space.host.cgroup import Cgroups
from space.host.filestore import FileStores
from space.host.instance import Instance
from space.host.linux import mounts_below
from space.host.network import Network

pytestmark = pytest.mark.anyio


@pytest.mark.root
async def test_it_removes_what_the_instance_has_in_the_kernel_and_below_run(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    instance = Instance(data_dir.prepare(tmp_path))
    (instance.run_dir / "gvisor").mkdir(parents=True)
    await Network(instance).prepare(1)
    await FileStores(tmp_path / "filestores").create(1, 64)
    Cgroups(instance).create(instance.slot_cgroup(1), Resources(memory_mib=64))
    assert await tear_down(settings) == 0
    assert not instance.run_dir.exists()
    assert not [name for name in netns.names() if instance.tag in name]
    assert mounts_below(tmp_path) == []
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{instance.cgroup[1:]}"))
    assert (tmp_path / "instance-id").exists()
    assert await tear_down(settings) == 0


async def test_where_nothing_ever_ran_there_is_nothing_to_remove(tmp_path: Path) -> None:
    assert await tear_down(Settings(data_dir=tmp_path)) == 0


def test_an_instance_keeps_its_id_whoever_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = data_dir.prepare(tmp_path)
    assert data_dir.prepare(tmp_path) == first
    with monkeypatch.context() as patch:  # another process made it between the look and the writing
        patch.setattr(Path, "exists", lambda self: False)
        assert data_dir.prepare(tmp_path) == first
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["instance-id"]

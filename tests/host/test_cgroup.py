"""Groups on the host's own hierarchy, and on a make-believe v2 one."""

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from space.core.sandbox import Resources
from space.host.cgroup import OVERHEAD_MIB, ROOT, Cgroups, switch_on
from space.host.instance import Instance
from space.host.process import spawn

pytestmark = pytest.mark.anyio

MIB = 1 << 20


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    made = Cgroups(Instance(f"test-{uuid.uuid4()}"))
    yield made
    made.sweep(())


def join(cgroups: Cgroups, path: str, pid: int) -> None:
    for directory in set(cgroups.directories(path).values()):
        (directory / "cgroup.procs").write_text(str(pid))


@pytest.mark.root
async def test_usage_and_processes_of_a_group_are_seen(cgroups: Cgroups) -> None:
    path = cgroups.instance.slot_cgroup(1)
    cgroups.create(path, Resources(memory_mib=64))
    process = spawn(["/bin/sh", "-c", "while :; do :; done"])
    join(cgroups, path, process.pid)
    assert cgroups.pids(path) == {process.pid}
    usage = cgroups.usage(path)
    assert usage.pids == 1
    cgroups.remove(path)
    assert await process.wait() == -signal.SIGKILL
    assert cgroups.pids(path) == set()
    assert cgroups.usage(path).pids == 0


@pytest.mark.root
async def test_limits_can_be_set_again_up_and_down(cgroups: Cgroups) -> None:
    path = cgroups.instance.slot_cgroup(1)
    for memory_mib in (64, 512, 64):
        cgroups.create(path, Resources(memory_mib=memory_mib))
        cgroups.add_overhead(path, Resources(memory_mib=memory_mib))
    name = "memory.max" if cgroups.is_v2 else "memory.limit_in_bytes"
    assert int((cgroups.directories(path)["memory"] / name).read_text()) == (64 + OVERHEAD_MIB) * MIB


@pytest.mark.root
async def test_a_hog_is_counted_as_oom(cgroups: Cgroups) -> None:
    path = cgroups.instance.slot_cgroup(1)
    cgroups.create(path, Resources(memory_mib=16))
    assert cgroups.oom_kills(path) == 0
    process = spawn(["/bin/sh", "-c", "read go; exec tail /dev/zero"], stdin=-1)
    join(cgroups, path, process.pid)
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(b"go\n")
    assert await process.wait() == -signal.SIGKILL
    assert cgroups.oom_kills(path) == 1


@pytest.mark.root
async def test_a_sweep_kills_and_removes_all_but_what_is_kept(cgroups: Cgroups) -> None:
    kept, lost = cgroups.instance.slot_cgroup(1), cgroups.instance.slot_cgroup(2)
    for path in (kept, lost):
        cgroups.create(path, Resources(memory_mib=64))
    process = spawn(["/bin/sleep", "60"])
    join(cgroups, lost, process.pid)
    assert cgroups.sweep({kept}) == [lost]
    assert await process.wait() == -signal.SIGKILL
    assert cgroups.directories(kept)["memory"].is_dir()
    assert not cgroups.directories(lost)["memory"].exists()


@pytest.mark.root
async def test_the_sweep_of_one_instance_leaves_another_alone(cgroups: Cgroups) -> None:
    other = Cgroups(Instance(f"test-{uuid.uuid4()}"))
    path = other.instance.slot_cgroup(1)
    other.create(path, Resources())
    assert cgroups.sweep(()) == []
    assert other.directories(path)["memory"].is_dir()
    other.sweep(())


@pytest.mark.parametrize("path", ["/", "/system.slice", "/space-00000000/m1", "/../x"])
def test_a_group_of_somebody_else_is_never_touched(path: str) -> None:
    cgroups = Cgroups(Instance("mine"))
    with pytest.raises(ValueError, match="no cgroup of this instance"):
        cgroups.create(path, Resources())
    with pytest.raises(ValueError, match="no cgroup of this instance"):
        cgroups.remove(path)


@pytest.fixture
def v2(tmp_path: Path) -> Cgroups:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    return Cgroups(Instance("mine"), root=tmp_path)


def test_on_v2_controllers_are_switched_on_from_the_root_down(v2: Cgroups) -> None:
    path = v2.instance.slot_cgroup(1)
    v2.create(path, Resources(vcpus=2, memory_mib=256))
    group = v2.root / path[1:]
    for parent in (v2.root, group.parent):
        assert (parent / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert not (group / "cgroup.subtree_control").exists()
    assert (group / "cpu.max").read_text() == "200000 100000"
    assert (group / "memory.max").read_text() == str(256 * MIB)
    assert (group / "memory.swap.max").read_text() == "0"
    assert (group / "memory.oom.group").read_text() == "1"
    assert int((group / "pids.max").read_text()) >= 4000
    v2.add_overhead(path, Resources(memory_mib=256))
    assert (group / "memory.max").read_text() == str((256 + OVERHEAD_MIB) * MIB)


@pytest.fixture
def real_v2() -> Iterator[tuple[Path, str]]:
    """A group of the host's own v2 hierarchy, and a controller that groups below it may use."""
    root = next((root for root in (ROOT, ROOT / "unified") if (root / "cgroup.controllers").exists()), None)
    names = (root / "cgroup.controllers").read_text().split() if root else []
    if root is None or not names:
        pytest.skip("no cgroup v2 hierarchy with a controller")
    was_on = names[0] in (root / "cgroup.subtree_control").read_text().split()
    switch_on(root, names[:1])
    group = root / f"space-test-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    yield group, names[0]
    for directory in (*group.iterdir(), group):
        if directory.is_dir():
            directory.rmdir()
    if not was_on:
        (root / "cgroup.subtree_control").write_text(f"-{names[0]}")


@pytest.mark.root
async def test_on_v2_a_group_with_processes_of_its_own_can_have_controllers(real_v2: tuple[Path, str]) -> None:
    group, controller = real_v2
    processes = [spawn(["/bin/sleep", "60"]) for _ in range(3)]
    for process in processes:
        (group / "cgroup.procs").write_text(str(process.pid))
    with pytest.raises(OSError, match="busy"):
        (group / "cgroup.subtree_control").write_text(f"+{controller}")
    switch_on(group, (controller,))
    assert (group / "cgroup.subtree_control").read_text().split() == [controller]
    moved = {int(pid) for pid in (group / "space-rest/cgroup.procs").read_text().split()}
    assert moved == {process.pid for process in processes}
    for process in processes:
        await process.stop(grace=0)


def test_a_group_that_does_not_empty_keeps_no_other_from_being_swept(
    v2: Cgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("space.host.cgroup.REMOVE_SECONDS", 0.01)
    stuck, other = v2.instance.slot_cgroup(1), v2.instance.slot_cgroup(2)
    for path in (stuck, other):
        (v2.root / path[1:]).mkdir(parents=True)
    (v2.root / stuck[1:] / "cgroup.procs").write_text("")  # in a plain directory, a file keeps it from being removed
    assert v2.sweep(()) == [other]
    assert not (v2.root / other[1:]).exists()


def test_on_v2_usage_and_oom_kills_are_read_from_its_files(v2: Cgroups) -> None:
    path = v2.instance.slot_cgroup(1)
    v2.create(path, Resources())
    group = v2.root / path[1:]
    (group / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    (group / "memory.current").write_text("4096\n")
    (group / "pids.current").write_text("3\n")
    (group / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 1\n")
    usage = v2.usage(path)
    assert (usage.cpu_seconds, usage.memory_bytes, usage.pids) == (1.5, 4096, 3)
    assert v2.oom_kills(path) == 2

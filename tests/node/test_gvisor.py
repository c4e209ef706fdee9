"""The node on real gVisor."""

import os
import random
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.node import gvisor
from tests.node.gvisor import AHEAD, gvisor_node, gvisor_order, remove_instance
from tests.node.harness import eventually, observed, output, read, shell

from space.core.errors import GuestUnreachable, NotFound
from space.core.node import MachineRef
from space.core.ports import MachineExited
from space.host import linux
from space.host.cgroup import Cgroups
from space.host.instance import Instance
from space.host.network import Network
from space.runtimes.gvisor import found
from space.templates.agent import build_agent_dir

pytestmark = [pytest.mark.anyio, pytest.mark.root]


@pytest.fixture(scope="session")
def agent_dir(tmp_path_factory: pytest.TempPathFactory, templates_dir: Path) -> Path:
    return build_agent_dir(tmp_path_factory.mktemp("space") / "agent")


@pytest.fixture
async def place(tmp_path: Path, agent_dir: Path) -> AsyncIterator[tuple[Path, str]]:
    """A directory and an instance id; what they hold is removed at the end."""
    instance_id = f"node-test-{uuid.uuid4()}"
    (tmp_path / "agent").symlink_to(agent_dir)
    yield tmp_path, instance_id
    await remove_instance(tmp_path, instance_id)
    shutil.rmtree(Instance(instance_id).run_dir, ignore_errors=True)


STEPS = (
    "ensure.after_intent",
    "ensure.after_start",
    "ensure.after_handle",
    "process.after_spawn",
    "remove.after_tombstone",
    "bury.after_stop",
    "bury.after_slot",
    "record.after_handle",
)


def run_victim(directory: Path, instance_id: str, failpoint: str) -> int:
    argv = [sys.executable, gvisor.__file__, str(directory), instance_id, "3"]
    environment = {**os.environ, "SPACE_FAILPOINT": failpoint}
    return subprocess.run(argv, env=environment, check=False, timeout=120, stdout=subprocess.DEVNULL).returncode


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def backing_file(device: Path) -> str:
    try:
        return (device / "loop/backing_file").read_text()
    except OSError:
        return ""


def census(directory: Path, instance_id: str) -> dict[str, object]:
    """Count what an instance has in the kernel and on disk."""
    instance = Instance(instance_id)
    groups = [path for path in Path("/sys/fs/cgroup").glob(f"**/{instance.cgroup[1:]}/*") if path.is_dir()]
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = [line for line in lines if "/run/netns/" not in line and (str(directory) in line or instance.tag in line)]
    return {
        "sandboxes": len(list(found.processes(instance.run_dir / "gvisor"))),
        "namespaces": len([path for path in Path("/run/netns").iterdir() if instance.tag in path.name]),
        "cgroups": len(groups),
        "mounts": len(mounts),
        "records": len(list((directory / "data/node/machines").iterdir())),
        "loops": sum(str(directory) in text for text in map(backing_file, Path("/sys/block").glob("loop*"))),
        "runtime files": len(list((instance.run_dir / "gvisor").glob("*"))),
    }


async def test_a_sandbox_outlives_its_node_and_its_command_loses_nothing(place: tuple[Path, str]) -> None:
    machine = await gvisor_order()
    process = shell("for i in $(seq 1 40); do echo $i; sleep 0.1; done")
    async with gvisor_node(*place) as node:
        await node.ensure(machine)
        status = await node.start_process(machine.ref, process)
        assert status.os_pid
        await anyio.sleep(1)
    await anyio.sleep(1)
    async with gvisor_node(*place) as node:
        assert await node.report() == {machine.ref.sandbox_id: 1}
        records = await read(node, process.session_id)
        assert output(records) == b"".join(b"%d\n" % number for number in range(1, 41))
        who = shell("id -un; pwd; echo $FROM_SANDBOX")
        await node.start_process(machine.ref, who)
        assert output(await read(node, who.session_id)) == b"user\n/\n1\n"
        assert (await node.stats(machine.ref))["memory_bytes"] > 0
        await node.remove(machine.ref)
        assert await node.report() == {}


async def test_a_killed_machine_ends_its_commands_with_a_reason_within_ten_seconds(place: tuple[Path, str]) -> None:
    machine, process = await gvisor_order(), shell("sleep 600")
    async with gvisor_node(*place) as node:
        await node.ensure(machine)
        await node.start_process(machine.ref, process)
        os.kill(node._machines.get(machine.ref).machine.handle.pid, signal.SIGKILL)
        with anyio.fail_after(10):
            records = await read(node, process.session_id)
        assert records[-1].kind.name == "SANDBOX_LOST"
        with pytest.raises((NotFound, GuestUnreachable)):
            await node.start_process(machine.ref, shell("true"))


async def reboot(directory: Path, instance_id: str) -> None:
    """Take away what the host loses when it restarts: processes, all of /run, cgroups, mounts; directories stay."""
    instance = Instance(instance_id)
    for process in found.processes(instance.run_dir / "gvisor"):
        os.kill(process.pid, signal.SIGKILL)
    await anyio.to_thread.run_sync(Cgroups(instance).sweep, ())
    for mount in linux.mounts_below(directory / "filestores"):
        linux.umount(mount, linux.MNT_DETACH)
    await Network(instance).remove()
    shutil.rmtree(instance.run_dir)


async def test_after_a_reboot_commands_are_lost_and_new_sandboxes_run(place: tuple[Path, str]) -> None:
    machine, process = await gvisor_order(), shell("echo before; sleep 600")
    async with gvisor_node(*place) as node:
        await node.ensure(machine)
        await node.start_process(machine.ref, process)
        journal = node._journals.find(process.session_id)
        assert journal is not None
        await eventually(lambda: journal.written[0] == len("before\n"))
    await reboot(*place)
    async with gvisor_node(*place) as node:
        assert await node.report() == {}
        exits = [item for item in await observed(node, 2) if isinstance(item, MachineExited)]
        assert [(item.ref, item.exit.reason) for item in exits] == [(machine.ref, "runtime_exited")]
        records = await read(node, process.session_id)
        assert output(records) == b"before\n"
        assert records[-1].kind.name == "SANDBOX_LOST"
        again = await gvisor_order()
        await node.ensure(again)
        later = shell("echo after")
        await node.start_process(again.ref, later)
        assert output(await read(node, later.session_id)) == b"after\n"
        await node.remove(again.ref)
        await eventually(lambda: len(node._slots._ready) == AHEAD)
        counted = census(*place)
    assert {name: counted[name] for name in ("sandboxes", "cgroups", "records", "runtime files")} == {
        "sandboxes": 0,
        "cgroups": 0,
        "records": 0,
        "runtime files": 0,
    }
    assert counted["mounts"] == counted["loops"] == AHEAD


@pytest.mark.parametrize(
    ("deaths", "lives"),
    [(6, 70), pytest.param(100, 1000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
    ids=["bounded", "long"],
)
async def test_sandboxes_and_killed_nodes_leave_nothing_behind(
    place: tuple[Path, str], deaths: int, lives: int
) -> None:
    """Case 23: mounts, descriptors, namespaces and cgroups return to where they began."""
    directory, instance_id = place
    random_steps = random.Random(23)
    async with gvisor_node(directory, instance_id) as node:
        await eventually(lambda: len(node._slots._ready) == AHEAD)
        before = census(directory, instance_id)
    for _ in range(deaths):
        failpoint = f"{random_steps.choice(STEPS)}:kill:{random_steps.randint(1, 3)}"
        assert await anyio.to_thread.run_sync(run_victim, directory, instance_id, failpoint) == -signal.SIGKILL
    async with gvisor_node(directory, instance_id) as node:
        for sandbox_id, generation in (await node.report()).items():  # as the control plane does with unknown ones
            await node.remove(MachineRef(sandbox_id, generation))
        open_before = descriptors()

        async def one() -> None:
            for _ in range(lives // 2):
                machine = await gvisor_order()
                await node.ensure(machine)
                await node.remove(replace(machine.ref, generation=2))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            tasks.start_soon(one)
        await eventually(lambda: len(node._slots._ready) == AHEAD)
        await node._upkeep.sweep()
        after = census(directory, instance_id)
        spare = after.pop("namespaces")
        assert isinstance(spare, int)
        assert spare <= 1 + AHEAD + 6  # free networks are kept for reuse: never more than were in use at once
        before.pop("namespaces")
        assert after == before
        assert descriptors() <= open_before

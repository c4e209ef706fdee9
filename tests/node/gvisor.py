"""A node on real gVisor, on what a directory and the kernel hold from others before it.

Run as a program it is one that somebody means to kill: `gvisor.py DIRECTORY INSTANCE COUNT` makes, uses and removes
sandboxes, `gvisor.py DIRECTORY INSTANCE METHOD` leads the `Life` that is pickled there; failpoints come from the
environment.
"""

import asyncio
import os
import pickle
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.node.harness import WallClock, later, order, shell  # noqa: E402

from space.core.ids import NodeId, PooledId  # noqa: E402
from space.core.node import MachineOrder  # noqa: E402
from space.core.pool import PoolKey, PoolOrder  # noqa: E402
from space.core.ports import ProcessOrder, Templates  # noqa: E402
from space.core.sandbox import Resources  # noqa: E402
from space.core.snapshot import SnapshotOrder, SnapshotRef  # noqa: E402
from space.host.cgroup import Cgroups  # noqa: E402
from space.host.filestore import FileStores  # noqa: E402
from space.host.instance import Instance  # noqa: E402
from space.host.network import Network  # noqa: E402
from space.host.reaper import Reaper  # noqa: E402
from space.node.agent import Node  # noqa: E402
from space.node.settings import NodeSettings  # noqa: E402
from space.node.slots import Slots  # noqa: E402
from space.node.snapshots import Images  # noqa: E402
from space.runtimes.gvisor.runtime import GVisor  # noqa: E402
from space.storage.objects import DirectoryObjects  # noqa: E402
from space.templates.store import TemplateStore  # noqa: E402

TEMPLATES = Path(os.environ.get("SPACE_TEST_TEMPLATES", "/var/cache/space/templates"))
AHEAD = 2


@asynccontextmanager
async def gvisor_node(
    directory: Path, instance_id: str, *, templates: Templates | None = None, **changes: object
) -> AsyncIterator[Node]:
    """Run a node; leaving takes the node away and leaves its machines alone."""
    instance = Instance(instance_id)
    node = Node(
        node_id=NodeId("nod" + "0" * 26),
        settings=NodeSettings(data_dir=directory / "data", agent_dir=directory / "agent", **changes),  # type: ignore[arg-type]
        runtimes={"gvisor": GVisor(instance)},
        templates=templates or TemplateStore(TEMPLATES),
        slots=Slots(
            networks=Network(instance),
            filestores=FileStores(directory / "filestores"),
            cgroups=Cgroups(instance),
            cgroup_of=instance.slot_cgroup,
            ahead=AHEAD,
            disk_mib=128,
        ),
        images=Images(directory / "images", DirectoryObjects(directory / "objects"), cache_bytes=4 << 30),
        clock=WallClock(),
    )
    async with Reaper(), anyio.create_task_group() as tasks:
        tasks.start_soon(node.run)
        await node.started()
        yield node
        tasks.cancel_scope.cancel()


async def gvisor_order() -> MachineOrder:
    template = await TemplateStore(TEMPLATES).resolve("base")
    resources = Resources(memory_mib=256, disk_mib=128)
    return replace(order(), runtime="gvisor", template_digest=template.digest, resources=resources)


async def remove_instance(directory: Path, instance_id: str) -> None:
    """Take everything of an instance away."""
    instance = Instance(instance_id)
    await GVisor(instance).sweep(frozenset())
    await asyncio.to_thread(Cgroups(instance).sweep, ())
    await FileStores(directory / "filestores").aclose()
    await Network(instance).remove()


async def _victim(directory: Path, instance_id: str, count: int) -> None:
    async with gvisor_node(directory, instance_id) as node, anyio.create_task_group() as tasks:

        async def lives() -> None:
            for _ in range(count):
                machine = await gvisor_order()
                await node.ensure(machine)
                process = shell("echo hello")
                await node.start_process(machine.ref, process)
                async for _record in node.read_session(process.session_id):
                    pass
                await node.remove(machine.ref)

        for _ in range(2):
            tasks.start_soon(lives)


@dataclass(frozen=True)
class Life:
    """What is done to one sandbox, step by step; whoever takes it up later goes on after the last step that ended."""

    machine: MachineOrder
    process: ProcessOrder
    moment: SnapshotOrder
    pooled_id: PooledId

    @property
    def woken(self) -> MachineOrder:
        return later(self.machine)

    async def suspend_and_wake(self, node: Node, directory: Path) -> None:
        done = _Done(directory / "steps")
        async with done("start") as is_due:
            if is_due:
                await node.ensure(self.machine)
                await node.start_process(self.machine.ref, self.process)
        async with done("checkpoint") as is_due:
            if is_due:
                await node.checkpoint(self.machine.ref, self.moment)
        async with done("upload") as is_due:
            if is_due:
                result = await node.upload(self.moment)
                (directory / "manifest").write_text(result.manifest)
        async with done("release") as is_due:
            if is_due:
                await node.release(self.machine.ref)
        restore = SnapshotRef(
            snapshot_id=self.moment.snapshot_id,
            project_id=self.moment.project_id,
            manifest=(directory / "manifest").read_text(),
            key=self.moment.key,
        )
        async with done("wake") as is_due:
            if is_due:
                await node.ensure(replace(self.woken, restore=restore))

    async def park_and_bind(self, node: Node, directory: Path) -> None:
        done = _Done(directory / "steps")
        kind = self.machine
        key = PoolKey(template_digest=kind.template_digest, runtime=kind.runtime, resources=kind.resources)
        async with done("park") as is_due:
            if is_due:
                await node.park(PoolOrder(id=self.pooled_id, key=key))
        async with done("bind") as is_due:
            if is_due:
                await node.bind(self.pooled_id, self.machine)


class _Done:
    """The steps that have ended, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @asynccontextmanager
    async def __call__(self, step: str) -> AsyncIterator[bool]:
        is_due = not self._path.exists() or step not in self._path.read_text().split()
        yield is_due
        if is_due:
            with self._path.open("a") as file:
                file.write(f"{step}\n")


async def _life_of_a_victim(directory: Path, instance_id: str, name: str) -> None:
    life: Life = pickle.loads((directory / "life").read_bytes())  # noqa: S301 - the parent wrote it
    async with gvisor_node(directory, instance_id) as node:
        await getattr(life, name)(node, directory)
        await anyio.sleep(1)  # for what is done in the background


if __name__ == "__main__":
    if sys.argv[3].isdigit():
        anyio.run(_victim, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    else:
        anyio.run(_life_of_a_victim, Path(sys.argv[1]), sys.argv[2], sys.argv[3])

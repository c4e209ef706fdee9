"""The baselines of `space bench create`: machines without a control plane, in a process of their own.

`bare` is `runsc run` with the flags and the bundle that SPACE uses, until the agent inside has answered: everything
else, from network to token, is prepared before the clock starts.  `node` is the node's own `ensure`, called directly.
What SPACE adds is then: node less bare, and create less node.

Run as `python -m`, as root, on the machine of the server whose templates it uses.
"""

import asyncio
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from space.app.compose import build_node
from space.cli.bench.answering import answer_questions
from space.config import Settings
from space.core.errors import SpaceError
from space.core.ids import SandboxId, make_id
from space.core.node import MachineOrder, MachineRef
from space.core.sandbox import Resources
from space.host.cgroup import Cgroups
from space.host.clock import SystemClock
from space.host.filestore import FileStores
from space.host.instance import Instance
from space.host.netns import open_tcp
from space.host.network import Network
from space.host.reaper import Reaper
from space.node.agent import Node
from space.node.guest import Guest
from space.node.record import MachineRecord
from space.node.slots import Slots
from space.runtimes.first_process import guest_agent
from space.runtimes.gvisor import bundle
from space.runtimes.gvisor.command import Runsc
from space.runtimes.gvisor.runtime import TOKEN_FD, GVisor, token_pipe
from space.telemetry import configure_logging
from space.templates.agent import build_agent_dir
from space.templates.store import TemplateStore

AGENT_PORT = 1
DIAL_PAUSE = 0.001
RESOURCES = Resources()


class BareMachines:
    """Starts machines with nothing around them, under an instance name of its own."""

    def __init__(self, directory: Path, templates: Path, agent_dir: Path) -> None:
        self._instance = Instance(secrets.token_hex(8))
        self._directory = directory
        self._templates = TemplateStore(templates)
        self._agent_dir = agent_dir
        self._cgroups = Cgroups(self._instance)
        self._network = Network(self._instance)
        self._filestores = FileStores(directory / "filestores")
        self._runtime = GVisor(self._instance)
        self._runsc = Runsc(program="runsc", root=self._instance.run_dir / "gvisor")
        self._slots = Slots(
            networks=self._network,
            filestores=self._filestores,
            cgroups=self._cgroups,
            cgroup_of=self._instance.slot_cgroup,
            disk_mib=RESOURCES.disk_mib,
        )

    @property
    def tag(self) -> str:
        return self._instance.tag

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["BareMachines"]:
        """Keep slots ready; leave nothing behind."""
        try:
            await self._slots.restore(())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._slots.run)
                yield self
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await _remove(self._instance, self._directory)

    async def measure(self) -> float:
        """Start one machine, return the milliseconds to its agent's answer, and remove it."""
        order = new_order((await self._templates.resolve("base")).digest)
        slot = await self._slots.claim(disk_mib=RESOURCES.disk_mib)
        template = await self._templates.resolve(order.template_digest)
        record = MachineRecord.make(self._directory / "machines", order, slot, template)
        spec = record.spec(agent_dir=self._agent_dir, agent_port=AGENT_PORT)
        spec.state_dir.mkdir(parents=True)
        self._runsc.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        argv, env = guest_agent(spec, f"fd:{TOKEN_FD}")
        path = bundle.write(spec, argv=argv, env=env)
        self._cgroups.create(slot.cgroup, RESOURCES)
        began = time.perf_counter()
        with token_pipe(spec.token) as token:
            await self._runsc.call(
                "run",
                "-detach",
                f"-pid-file={spec.state_dir / 'pid'}",
                f"-bundle={path}",
                f"-pass-fd={token}:{TOKEN_FD}",
                spec.machine_id,
                log=spec.state_dir / "runsc.log",
                filestore=slot.filestore,
                pass_fds=(token,),
                timeout=60,
            )
        guest = await self._agent(slot.gateway_netns, slot.guest_ip, spec.token)
        took = (time.perf_counter() - began) * 1000
        await guest.aclose()
        await self._runtime.sweep(frozenset())
        await self._slots.release(slot)
        return took

    async def _agent(self, netns: str, address: str, token: str) -> Guest:
        while True:
            try:
                stream = await open_tcp(netns, address, AGENT_PORT, timeout=1)
                return await Guest.open(stream, token=token, deliver=_ignore)
            except (OSError, EOFError, SpaceError):
                await asyncio.sleep(DIAL_PAUSE)


async def _remove(instance: Instance, directory: Path) -> None:
    """Take away all that an instance made in the kernel."""
    await GVisor(instance).sweep(frozenset())
    await Network(instance).remove()
    await FileStores(directory / "filestores").aclose()
    Cgroups(instance).sweep(())


async def _ignore(_: object) -> None:
    """Take what no process sends."""


def new_order(digest: str) -> MachineOrder:
    """Make an order for a machine of a sandbox that no control plane knows."""
    sandbox_id = SandboxId(make_id("sbx", unix_ms=time.time_ns() // 1_000_000, randomness=secrets.token_bytes(10)))
    return MachineOrder(ref=MachineRef(sandbox_id, 1), runtime="gvisor", template_digest=digest, resources=RESOURCES)


async def measure_node(node: Node, digest: str) -> float:
    """Have a node make one machine, return the milliseconds, and remove it."""
    order = new_order(digest)
    began = time.perf_counter()
    await node.ensure(order)
    took = (time.perf_counter() - began) * 1000
    await node.remove(order.ref)
    return took


async def main(data_dir: Path) -> None:
    """Answer `{"what": "bare" | "node"}` with `{"ms"}`, and `names` with the instances' tags."""
    templates = data_dir / "templates"
    directory = Path(tempfile.mkdtemp(prefix="space-bench-"))
    instance = Instance(secrets.token_hex(8))
    settings = Settings(data_dir=directory)
    try:
        agent_dir = await asyncio.to_thread(build_agent_dir, directory / "agent")
        store = TemplateStore(templates)
        digest = (await store.resolve("base")).digest
        node = build_node(settings, instance=instance, agent_dir=agent_dir, templates=store, clock=SystemClock())
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(Reaper())
            bare = await stack.enter_async_context(BareMachines(directory / "bare", templates, agent_dir).opened())
            stack.push_async_callback(_remove, instance, directory)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            tasks.start_soon(node.run)
            await node.started()

            async def answer(question: dict[str, Any]) -> dict[str, Any]:
                if question["what"] == "names":
                    return {"tags": [instance.tag, bare.tag]}
                took = await (bare.measure() if question["what"] == "bare" else measure_node(node, digest))
                return {"ms": took}

            await answer_questions(answer)
            tasks.cancel_scope.cancel()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    configure_logging(log_format="json", level="warning", stream=sys.stderr)
    asyncio.run(main(Path(sys.argv[1])))

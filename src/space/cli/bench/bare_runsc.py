"""What runsc does by itself: run, restore and checkpoint of machines under an instance name of their own."""

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from space.cli.bench.memory import pss_mib
from space.core.errors import SpaceError
from space.core.ids import SandboxId, make_id
from space.core.node import MachineOrder, MachineRef, MachineSpec, Slot
from space.core.sandbox import Resources
from space.host.cgroup import Cgroups
from space.host.filestore import FileStores
from space.host.instance import Instance
from space.host.netns import open_tcp
from space.host.network import Network
from space.node.guest import Guest
from space.node.record import MachineRecord
from space.node.slots import Slots
from space.runtimes.first_process import guest_agent
from space.runtimes.gvisor import bundle
from space.runtimes.gvisor.command import CHECKPOINT, Runsc
from space.runtimes.gvisor.runtime import TOKEN_FD, GVisor, token_pipe
from space.templates.store import TemplateStore

AGENT_PORT = 1
DIAL_PAUSE = 0.001
IDLE_SECONDS = 3.0
SETTLE_SECONDS = 0.5  #: until a guest is idle after its agent has lost its caller
AT_ONCE = 2 * (os.cpu_count() or 1)  #: starts are bound by CPU: more at once would make each of them later


@dataclass(frozen=True, slots=True)
class _Bare:
    """A machine's place and bundle."""

    slot: Slot
    spec: MachineSpec
    bundle: Path


@dataclass(frozen=True, slots=True)
class _Held:
    """A machine that stays, and its image."""

    machine: _Bare
    image: Path


class BareRunsc:
    """Starts machines with nothing around them."""

    def __init__(self, directory: Path, templates: Path, agent_dir: Path, resources: Resources) -> None:
        self._instance = Instance(secrets.token_hex(8))
        self._directory = directory
        self._templates = TemplateStore(templates)
        self._agent_dir = agent_dir
        self._resources = resources
        self._cgroups = Cgroups(self._instance)
        self._runsc = Runsc(program="runsc", root=self._instance.run_dir / "gvisor")
        self._held: _Held | None = None
        self._slots = Slots(
            networks=Network(self._instance),
            filestores=FileStores(directory / "filestores"),
            cgroups=self._cgroups,
            cgroup_of=self._instance.slot_cgroup,
            disk_mib=resources.disk_mib,
        )

    @property
    def tag(self) -> str:
        return self._instance.tag

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Keep slots ready; leave nothing behind."""
        try:
            await self._slots.restore(())
            self._runsc.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._slots.run)
                yield
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await remove_instance(self._instance, self._directory)

    async def run(self) -> float:
        """Start one machine, return the milliseconds to its agent's answer, and remove it."""
        machine = await self._prepare()
        took = await self._run(machine)
        await self._remove(machine)
        return took

    async def restore(self) -> float:
        """Start one from an image of an idle machine, return the milliseconds to its agent's answer, and remove it."""
        held = await self._hold()
        machine = await self._prepare()
        took = await self._restore(machine, held)
        await self._remove(machine)
        return took

    async def burst(self, count: int) -> Sequence[float]:
        """Start so many from an image at once; return for each the milliseconds from the beginning of all."""
        held = await self._hold()
        machines = [await self._prepare() for _ in range(count)]
        places = asyncio.Semaphore(AT_ONCE)
        began = time.perf_counter()

        async def one(machine: _Bare) -> float:
            async with places:
                await self._restore(machine, held)
            return (time.perf_counter() - began) * 1000

        took = await asyncio.gather(*map(one, machines))
        for machine in machines:
            await self._remove(machine)
        return took

    async def checkpoint(self) -> float:
        """Write an image of an idle machine, which goes on; return the milliseconds that runsc took."""
        held = await self._hold()
        image = self._directory / "checkpoint"
        took = await self._checkpoint(held.machine, image)
        await asyncio.to_thread(shutil.rmtree, image)
        return took

    async def pss_mib(self) -> float:
        """Return the memory of an idle machine, its share of pages that it has in common with others.

        It is a fresh one: a checkpoint leaves the runtime's own heap larger than it was.
        """
        machine = await self._prepare()
        await self._run(machine)
        await asyncio.sleep(IDLE_SECONDS)
        found = pss_mib(self._cgroups.pids(machine.slot.cgroup))
        await self._remove(machine)
        return found

    async def _hold(self) -> _Held:
        """Start the machine that stays, once, and write its image."""
        if self._held is None:
            machine = await self._prepare()
            await self._run(machine)
            await asyncio.sleep(SETTLE_SECONDS)
            image = self._directory / "image"
            await self._checkpoint(machine, image)
            self._held = _Held(machine, image)
        return self._held

    async def _prepare(self) -> _Bare:
        slot = await self._slots.claim(disk_mib=self._resources.disk_mib)
        template = await self._templates.resolve("base")
        record = MachineRecord.make(
            self._directory / "machines", new_order(template.digest, self._resources), slot, template
        )
        spec = record.spec(agent_dir=self._agent_dir, agent_port=AGENT_PORT)
        spec.state_dir.mkdir(parents=True)
        argv, env = guest_agent(spec, f"fd:{TOKEN_FD}")
        return _Bare(slot, spec, bundle.write(spec, argv=argv, env=env))

    async def _run(self, machine: _Bare) -> float:
        self._cgroups.create(machine.slot.cgroup, self._resources)
        began = time.perf_counter()
        with token_pipe(machine.spec.token) as token:
            await self._start(machine, "run", f"-pass-fd={token}:{TOKEN_FD}", pass_fds=(token,))
        return await self._answered(machine, machine.spec.token, began)

    async def _restore(self, machine: _Bare, held: _Held) -> float:
        self._cgroups.create(machine.slot.cgroup, self._resources)
        began = time.perf_counter()
        await self._start(machine, "restore", f"-image-path={held.image}")
        return await self._answered(machine, held.machine.spec.token, began)

    async def _start(self, machine: _Bare, verb: str, *options: str, pass_fds: Sequence[int] = ()) -> None:
        await self._runsc.call(
            verb,
            "-detach",
            f"-pid-file={machine.spec.state_dir / 'pid'}",
            f"-bundle={machine.bundle}",
            *options,
            machine.spec.machine_id,
            log=machine.spec.state_dir / "runsc.log",
            filestore=machine.slot.filestore,
            pass_fds=pass_fds,
            timeout=60,
        )

    async def _answered(self, machine: _Bare, token: str, began: float) -> float:
        """Wait for the agent; the connection is closed, because an image is made while nobody is connected."""
        slot = machine.slot
        while True:
            try:
                stream = await open_tcp(slot.gateway_netns, slot.guest_ip, AGENT_PORT, timeout=1)
                guest = await Guest.open(stream, token=token, deliver=_ignore)
                break
            except (OSError, EOFError, SpaceError):
                await asyncio.sleep(DIAL_PAUSE)
        took = (time.perf_counter() - began) * 1000
        await guest.aclose()
        return took

    async def _checkpoint(self, machine: _Bare, image: Path) -> float:
        await asyncio.to_thread(image.mkdir)
        began = time.perf_counter()
        await self._runsc.call(
            *CHECKPOINT,
            f"-image-path={image}",
            machine.spec.machine_id,
            log=machine.spec.state_dir / "runsc.log",
            timeout=60,
        )
        return (time.perf_counter() - began) * 1000

    async def _remove(self, machine: _Bare) -> None:
        await asyncio.to_thread(self._cgroups.remove, machine.slot.cgroup)  # kills what is in it
        for path in self._runsc.files_of(machine.spec.machine_id):
            path.unlink(missing_ok=True)
        await self._slots.release(machine.slot)


def new_order(digest: str, resources: Resources) -> MachineOrder:
    """Make an order for a machine of a sandbox that no control plane knows."""
    sandbox_id = SandboxId(make_id("sbx", unix_ms=time.time_ns() // 1_000_000, randomness=secrets.token_bytes(10)))
    return MachineOrder(ref=MachineRef(sandbox_id, 1), runtime="gvisor", template_digest=digest, resources=resources)


async def remove_instance(instance: Instance, directory: Path) -> None:
    """Take away all that an instance made in the kernel."""
    await GVisor(instance).sweep(frozenset())
    await Network(instance).remove()
    await FileStores(directory / "filestores").aclose()
    Cgroups(instance).sweep(())


async def _ignore(_: object) -> None:
    """Take what no process sends."""

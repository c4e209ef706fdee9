"""Machines on gVisor with the real agent, which give programs what a root of one static program lacks: Python."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from space.core.command import CommandSpec
from space.core.ids import ProcessId
from space.core.node import MachineSpec
from space.core.ports import Machine
from space.node.guest import Exited, Guest, Output
from space.testing.conformance.runtime import eventually

PYTHON = ("/.space/lib/ld.so", "--library-path", "/.space/lib", "/.space/bin/python3", "-I", "-S", "-u", "-c")
TOKEN = "the token that the guest was started with"


class AgentGuest:
    """A machine and a connection to its agent; it goes on elsewhere with `move`."""

    def __init__(self, host: Any, machine: Machine, spec: MachineSpec, token: str) -> None:
        self.host, self.machine, self.spec, self.token = host, machine, spec, token
        self.guest: Guest
        self.output: dict[str, bytes] = {}
        self.exits: dict[str, Exited] = {}
        self._ids = count(1)

    async def _deliver(self, event: Output | Exited) -> None:
        if isinstance(event, Output):
            self.output[event.process_id] = self.output.get(event.process_id, b"") + event.data
        else:
            self.exits[event.process_id] = event

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator["AgentGuest"]:
        """Talk to the agent in the body, and take leave of it."""

        async def dial() -> Guest:
            stream = await self.machine.connect(self.spec.agent_port)
            return await Guest.open(stream, token=self.token, deliver=self._deliver)

        self.guest = await eventually(dial)
        task = asyncio.create_task(self.guest.run())
        try:
            yield self
            await self.guest.quiesce()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.guest.aclose()

    async def start(self, *argv: str, user: str = "root", **options: Any) -> ProcessId:
        process_id = ProcessId(f"prc{next(self._ids):026d}")
        self.output.setdefault(process_id, b"")
        spec = CommandSpec(argv=argv, user=user, **options)
        await self.guest.spawn(process_id, spec, env={"PATH": "/bin"}, default_user=user)
        return process_id

    async def run(self, *argv: str, **options: Any) -> str:
        """Run a program to its end and return all that it put out."""
        process_id = await self.start(*argv, **options)
        await self.until(lambda: process_id in self.exits)
        return self.output[process_id].decode()

    async def sh(self, script: str, **options: Any) -> str:
        return (await self.run("sh", "-c", script, **options)).strip()

    async def python(self, program: str) -> str:
        return (await self.run(*PYTHON, program)).strip()

    async def until(self, is_so: Any, seconds: float = 30) -> None:
        async with asyncio.timeout(seconds):
            while not is_so():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def says(self, process_id: ProcessId, text: bytes) -> None:
        """Wait until a process has put this out."""
        await self.until(lambda: text in self.output[process_id])

    async def attach(self, process_id: ProcessId) -> None:
        offset = len(self.output[process_id])
        statuses = {each.process_id: each for each in await self.guest.processes()}
        stream = "pty" if "pty" in statuses[process_id].offsets else "stdout"
        await self.guest.attach(process_id, offsets={stream: offset})

    async def restored(self, image: Path) -> "AgentGuest":
        """Start another machine from a snapshot of this one, in a slot and with an id of its own."""
        spec = await self.host.spec(self.spec.resources)
        machine = await self.host.runtime().start(spec, snapshot=image)
        other = AgentGuest(self.host, machine, spec, self.token)
        other.output, other.exits, other._ids = dict(self.output), dict(self.exits), count(1000)
        return other

    async def gone(self) -> None:
        """End the machine and remove all that it had on this host."""
        await self.machine.stop()
        shutil.rmtree(self.spec.state_dir)
        await self.host.filestores.remove(self.spec.slot.index)

    async def moved(self, image: Path) -> "AgentGuest":
        """Save the machine, remove it, and go on elsewhere."""
        await self.machine.snapshot(image)
        await self.gone()
        other = await self.restored(image)
        shutil.rmtree(image)
        return other


async def agent_guest(host: Any, agent_dir: Path, **changes: Any) -> AgentGuest:
    """Start a machine whose first process is the real agent."""
    host.agent_dir = agent_dir
    resources = {"resources": changes.pop("resources")} if "resources" in changes else {}
    spec = replace(await host.spec(**resources), token=TOKEN, **changes)
    return AgentGuest(host, await host.runtime().start(spec), spec, TOKEN)

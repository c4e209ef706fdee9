"""Machines that outlive the process that started them: detached guest agents, found again through files.

Run as a program it is a node that somebody means to kill: `detached.py DIRECTORY ORDER`, where ORDER is a pickled
`Scenario`; failpoints come from the environment.
"""

import asyncio
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio

SOURCE = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(SOURCE), str(SOURCE / "src")]

from tests.node.harness import DirectoryImages, WallClock, World  # noqa: E402

from space.core.errors import GuestUnreachable  # noqa: E402
from space.core.ids import NodeId  # noqa: E402
from space.core.node import Capabilities, Exit, MachineHandle, MachineOrder, MachineSpec  # noqa: E402
from space.core.ports import ProcessOrder  # noqa: E402
from space.host.daemon import start_time_of  # noqa: E402
from space.host.stream import SocketStream  # noqa: E402
from space.node.agent import Node  # noqa: E402
from space.node.settings import NodeSettings  # noqa: E402
from space.node.slots import Slots  # noqa: E402
from space.testing.runtime import FakeCgroups, FakeFileStores, FakeNetwork  # noqa: E402
from space.testing.templates import FakeTemplates  # noqa: E402


class DetachedMachine:
    """An agent process of its own session."""

    def __init__(self, handle: MachineHandle, files: Path) -> None:
        self.handle = handle
        self._files = files

    @property
    def _runs(self) -> bool:
        return start_time_of(self.handle.pid) == self.handle.pid_start_time

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def stop(self, *, grace: float = 0) -> None:
        if self._runs:
            os.kill(self.handle.pid, signal.SIGKILL)
        while self._runs:
            _reap(self.handle.pid)
            await asyncio.sleep(0.005)
        (self._files / self.handle.machine_id).unlink(missing_ok=True)

    async def wait(self) -> Exit:
        while self._runs:
            _reap(self.handle.pid)
            await asyncio.sleep(0.02)
        return Exit(reason="runtime_exited")

    async def stats(self) -> Mapping[str, float]:
        return {"pids": 1.0}

    async def connect(self, port: int) -> SocketStream:
        connection = socket.socket()
        connection.setblocking(False)
        try:
            address = ("127.0.0.1", self.handle.details["port"])
            await asyncio.get_running_loop().sock_connect(connection, address)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise GuestUnreachable(str(error)) from error
            raise
        return SocketStream(connection)


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


class DetachedRuntime:
    """`core.ports.Runtime` without isolation; a file for each machine says what runs."""

    name = "fake"

    def __init__(self, files: Path) -> None:
        self.files = files
        self.files.mkdir(exist_ok=True)

    async def probe(self) -> Capabilities:
        return Capabilities(runtime=self.name, is_available=True)

    def machines(self) -> dict[str, MachineHandle]:
        return {path.name: MachineHandle(**json.loads(path.read_text())) for path in self.files.iterdir()}

    async def start(self, spec: MachineSpec, *, snapshot: Path | None = None) -> DetachedMachine:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        token = spec.state_dir / "token"
        token.write_text(spec.token)
        child = subprocess.Popen(
            [sys.executable, "-S", "-m", "space_guest", str(port), str(token), spec.default_user],
            env={"PYTHONPATH": str(SOURCE / "src"), "PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        child.returncode = 0  # nobody here waits for it: it is detached
        handle = MachineHandle(
            runtime=self.name,
            machine_id=spec.machine_id,
            pid=child.pid,
            pid_start_time=start_time_of(child.pid) or 0,
            details={"port": port},
        )
        body = {name: getattr(handle, name) for name in MachineHandle.__slots__}
        (self.files / spec.machine_id).write_text(json.dumps(body))
        return DetachedMachine(handle, self.files)

    async def recover(self, handle: MachineHandle, spec: MachineSpec) -> DetachedMachine | None:
        machine = DetachedMachine(handle, self.files)
        return machine if machine._runs else None

    async def sweep(self, keep: frozenset[str]) -> Sequence[str]:
        gone = [(name, handle) for name, handle in self.machines().items() if name not in keep]
        for _, handle in gone:
            await DetachedMachine(handle, self.files).stop()
        return [name for name, _ in gone]


@dataclass(frozen=True)
class Scenario:
    """A whole life of a sandbox, to be repeated until it has been got through."""

    machine: MachineOrder
    process: ProcessOrder

    async def live(self, node: Node) -> bytes:
        """Start a machine, run a command, and return what it printed."""
        await node.ensure(self.machine)
        await node.start_process(self.machine.ref, self.process)
        printed = bytearray()
        async for record in node.read_session(self.process.session_id):
            printed += record.payload if record.kind.is_output else b""  # type: ignore[union-attr]
        return bytes(printed)


@asynccontextmanager
async def detached_node(directory: Path, **changes: object) -> AsyncIterator[tuple[Node, DetachedRuntime]]:
    """Run a node on what `directory` holds from others before it."""
    (directory / "rootfs").mkdir(exist_ok=True)
    template = World.template_at(directory / "rootfs")
    runtime = DetachedRuntime(directory / "kernel")
    node = Node(
        node_id=NodeId("nod" + "0" * 26),
        settings=NodeSettings(data_dir=directory / "data", agent_dir=directory, **changes),  # type: ignore[arg-type]
        runtimes={"fake": runtime},
        templates=FakeTemplates(template),
        slots=Slots(
            networks=FakeNetwork(set(range(1, 9))),
            filestores=FakeFileStores(directory / "filestores"),
            cgroups=FakeCgroups(),
            cgroup_of=lambda index: f"/fake/m{index}",
            ahead=1,
        ),
        images=DirectoryImages(directory / "images"),
        clock=WallClock(),
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.run)
        await node.started()
        yield node, runtime
        tasks.cancel_scope.cancel()


async def _victim(directory: Path) -> None:
    scenario: Scenario = pickle.loads((directory / "scenario").read_bytes())  # noqa: S301 - the parent wrote it
    async with detached_node(directory) as (node, _):
        await scenario.live(node)
        await node.remove(scenario.machine.ref)


if __name__ == "__main__":
    anyio.run(_victim, Path(sys.argv[1]))

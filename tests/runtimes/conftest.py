"""A small guest for tests of runtimes, and hosts on which to start it."""

import asyncio
import os
import shutil
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from space.core.node import MachineSpec, Slot
from space.core.ports import Machine
from space.core.sandbox import Resources
from space.host.cgroup import Cgroups
from space.host.filestore import FileStores
from space.host.instance import Instance
from space.host.network import Network
from space.host.reaper import Reaper
from space.runtimes.first_process import FirstProcess, guest_agent
from space.runtimes.gvisor import GVisor, found
from space.templates.agent import build_agent_dir
from space.testing.conformance.runtime import eventually

PORT = 7000
APPLETS = (
    "sh cat nc ip ping wget dd mount umount ps free true sleep id df chmod mkdir route head tail sync stat nslookup "
    "tr cut sort grep ls rm mv wc kill date hostname seq stty touch"
)
SMALL = Resources(memory_mib=256, disk_mib=64)


def server(port: int, program: str) -> tuple[list[str], dict[str, str]]:
    # In a loop, because being paused interrupts busybox's accept(), which then gives up.
    return ["/bin/sh", "-c", f"while :; do nc -ll -p {port} -e {program}; done"], {"PATH": "/bin"}


def echo_server(spec: MachineSpec, token_path: str) -> tuple[list[str], dict[str, str]]:
    """Echo on one port and count callers on another, as the suite wants it.

    The token's pipe is closed as the agent does when it has read it: a descriptor of the host cannot be saved.
    """
    counter = f"i=0; while :; do i=$((i + 1)); echo $i | nc -l -p {spec.agent_port + 2}; done"
    (shell, option, echo), env = server(spec.agent_port, "/bin/cat")
    return [shell, option, f"exec 3<&-; ({counter}) & {echo}"], env


def shell_server(spec: MachineSpec, token_path: str) -> tuple[list[str], dict[str, str]]:
    """Answer each connection with a root shell that reads its script from it."""
    return server(spec.agent_port, "/bin/sh")


GUESTS: dict[str, FirstProcess] = {"echo": echo_server, "shell": shell_server, "agent": guest_agent}


@pytest.fixture(scope="session")
def busybox_rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A template of one static program, which no guest may change."""
    root = tmp_path_factory.mktemp("rootfs")
    for name in ("bin", "dev", "etc", "proc", "run", "sys", "tmp", "root"):
        (root / name).mkdir()
    shutil.copy("/bin/busybox", root / "bin/busybox")
    for applet in APPLETS.split():
        (root / "bin" / applet).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n")
    return root


class GVisorHost:
    """One instance on this host; see `space.testing.conformance.runtime.RuntimeHost`."""

    def __init__(self, directory: Path, rootfs: Path, first_process: FirstProcess) -> None:
        self.instance = Instance(f"test-{uuid.uuid4()}")
        self.directory = directory
        self.rootfs = rootfs
        self.first_process = first_process
        self.network = Network(self.instance)
        self.filestores = FileStores(directory / "filestores")
        self.cgroups = Cgroups(self.instance)
        self.agent_dir = directory / "agent"
        self._count = 0

    def runtime(self) -> GVisor:
        return GVisor(self.instance, first_process=self.first_process)

    async def spec(self, resources: Resources = SMALL) -> MachineSpec:
        network = await self.network.claim()
        self._count += 1
        state_dir = self.directory / f"machine-{self._count}"
        state_dir.mkdir(mode=0o700)
        self.agent_dir.mkdir(exist_ok=True)
        slot = Slot(
            index=network.index,
            netns=network.netns,
            gateway_netns=network.gateway_netns,
            guest_ip=network.guest_ip,
            gateway_ip=network.gateway_ip,
            prefix_length=network.prefix_length,
            filestore=await self.filestores.create(network.index, resources.disk_mib),
            cgroup=self.instance.slot_cgroup(network.index),
        )
        return MachineSpec(
            machine_id=f"sbx{uuid.uuid4().hex}",
            rootfs=self.rootfs,
            slot=slot,
            resources=resources,
            agent_dir=self.agent_dir,
            token="no guest must see this but by its file",
            agent_port=PORT,
            state_dir=state_dir,
        )

    async def ask(self, machine: Machine, script: str, *, timeout: float = 30) -> str:
        """Run a script as root in a guest whose first process is the shell server; return what it printed."""
        stream = await eventually(lambda: machine.connect(PORT))
        try:
            await stream.send(f"{script}\nexit\n".encode())
            answer = b""
            async with asyncio.timeout(timeout):
                while data := await stream.receive():
                    answer += data
            return answer.decode()
        finally:
            await stream.aclose()

    async def kill(self, machine: Machine) -> None:
        os.kill(machine.handle.pid, signal.SIGKILL)

    def leftovers(self) -> Sequence[str]:
        root = self.instance.run_dir / "gvisor"
        groups = Path("/sys/fs/cgroup").glob(f"**/{self.instance.cgroup[1:]}/*/")
        return [
            *(f"process {process}" for process in found.processes(root)),
            *(f"cgroup {path}" for path in groups),
            *(f"file {path}" for path in root.glob("*")),
        ]

    async def remove(self) -> None:
        await self.runtime().sweep(frozenset())
        self.cgroups.sweep(())
        await self.filestores.aclose()
        await self.network.remove()
        shutil.rmtree(self.instance.run_dir, ignore_errors=True)


@pytest.fixture(scope="session")
def agent_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real `/.space`."""
    return build_agent_dir(tmp_path_factory.mktemp("agents"))


@pytest.fixture
async def make_host(tmp_path: Path, busybox_rootfs: Path) -> AsyncIterator[Callable[..., GVisorHost]]:
    """Return a maker of hosts; each is an instance of its own and is removed at the end."""
    hosts: list[GVisorHost] = []

    def make(guest: str = "shell") -> GVisorHost:
        hosts.append(GVisorHost(tmp_path / f"host-{len(hosts)}", busybox_rootfs, GUESTS[guest]))
        hosts[-1].directory.mkdir()
        return hosts[-1]

    async with Reaper():
        yield make
        for host in hosts:
            await host.remove()

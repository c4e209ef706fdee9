"""A node whose machines are processes of this host: the real guest agent, no isolation, no root."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio

from space.core.command import CommandSpec, Pty
from space.core.errors import GuestUnreachable, NotFound
from space.core.ids import NodeId, ProcessId, ProjectId, SandboxId, SessionId, SnapshotId, make_id
from space.core.journal import JournalRecord, RecordKind, Trimmed
from space.core.node import Capabilities, MachineHandle, MachineOrder, MachineRef, MachineSpec
from space.core.ports import MachineExited, ProcessOrder, SessionStatus
from space.core.sandbox import Resources
from space.core.snapshot import SnapshotOrder, SnapshotPlan, SnapshotRef, SnapshotResult
from space.core.template import Template
from space.host.stream import SocketStream
from space.node.agent import Node
from space.node.settings import NodeSettings
from space.node.slots import Slots
from space.testing.guest import FakeGuest
from space.testing.runtime import FakeCgroups, FakeFileStores, FakeHost, FakeMachine, FakeNetwork, FakeRuntime, Serve
from space.testing.templates import FakeTemplates

SOURCE = Path(__file__).parents[2] / "src"
DIGEST = "sha256:" + "5" * 64


class WallClock:
    """The real time."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def new_id(prefix: str) -> str:
    return make_id(prefix, unix_ms=int(datetime.now(UTC).timestamp() * 1000), randomness=os.urandom(10))


class LocalAgents:
    """Starts a real agent for each machine of a `FakeHost`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: dict[str, int] = {}

    def guest(self, spec: MachineSpec) -> Callable[[int], Serve]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        token = self.directory / f"{spec.machine_id}.token"
        token.write_text(spec.token)
        self.processes[spec.machine_id] = subprocess.Popen(
            [sys.executable, "-S", "-m", "space_guest", str(port), str(token), spec.default_user],
            env={"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"]},
            start_new_session=True,
        )
        self.ports[spec.machine_id] = port
        return _nobody

    def kill(self, machine_id: str) -> None:
        """End an agent and all that it started."""
        process = self.processes.pop(machine_id, None)
        if process is not None:
            process.kill()
            process.wait()

    def kill_all(self) -> None:
        for machine_id in list(self.processes):
            self.kill(machine_id)


def _nobody(port: int) -> Serve:
    raise ConnectionRefusedError(f"nothing listens on {port}")


class LocalMachine(FakeMachine):
    """A machine of `FakeHost` whose agent is a process of this host."""

    def __init__(self, host: FakeHost, running: Any, agents: LocalAgents) -> None:
        super().__init__(host, running)
        self._agents = agents

    async def connect(self, port: int) -> SocketStream:  # type: ignore[override]
        machine_id = self.handle.machine_id
        if not self._running.runs or machine_id in self._host.unreachable:
            raise GuestUnreachable(f"machine {machine_id} does not answer")
        connection = socket.socket()
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self._agents.ports[machine_id]))
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise GuestUnreachable(str(error)) from error
            raise
        return SocketStream(connection)

    async def stop(self, *, grace: float = 0) -> None:
        self._agents.kill(self.handle.machine_id)
        await super().stop(grace=grace)


class LocalRuntime(FakeRuntime):
    """`FakeRuntime` with real agents."""

    def __init__(self, host: FakeHost, agents: LocalAgents) -> None:
        super().__init__(host)
        self._agents = agents

    async def probe(self) -> Capabilities:
        reasons = {"memory_snapshot": "its agents are processes of this host"}
        return replace(await super().probe(), memory_snapshot=False, snapshot_format=None, reasons=reasons)

    async def start(self, spec: MachineSpec, *, snapshot: Path | None = None) -> FakeMachine:
        return self._with_agent(await super().start(spec, snapshot=snapshot))

    async def recover(self, handle: MachineHandle, spec: MachineSpec) -> FakeMachine | None:
        found = await super().recover(handle, spec)
        return self._with_agent(found) if found is not None else None

    def _with_agent(self, machine: FakeMachine) -> LocalMachine:
        return LocalMachine(self.host, machine._running, self._agents)

    async def sweep(self, keep: frozenset[str]) -> Sequence[str]:
        gone = await super().sweep(keep)
        for machine_id in gone:
            self._agents.kill(machine_id)
        return gone


@dataclass(frozen=True, slots=True)
class DirectoryImage:
    """A moment that lies in a directory as it was made."""

    path: Path
    meta: Mapping[str, Any]


class DirectoryImages:
    """`node.images.Images` without chunks and store: one directory a snapshot; `failures` are raised in turn."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.failures: list[Exception] = []

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    def _paths(self, snapshot_id: SnapshotId) -> tuple[Path, Path]:
        return self.directory / snapshot_id, self.directory / f"{snapshot_id}.json"

    async def planned(self, order: SnapshotOrder) -> SnapshotPlan | None:
        if not self._paths(order.snapshot_id)[1].exists():
            return None
        return SnapshotPlan(chunks=[b"\0" * 32], bytes_read=1, bytes_new=1)

    async def plan(self, order: SnapshotOrder, source: Path, meta: Mapping[str, Any]) -> SnapshotPlan:
        self._fail()
        directory, words = self._paths(order.snapshot_id)
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(source, directory)
        words.write_text(json.dumps(meta))
        return SnapshotPlan(chunks=[b"\0" * 32], bytes_read=1, bytes_new=1)

    async def upload(self, order: SnapshotOrder) -> SnapshotResult:
        self._fail()
        if await self.planned(order) is None:
            raise NotFound(f"no checkpoint {order.snapshot_id} on this node")
        return SnapshotResult(manifest="0" * 64, bytes_read=1, bytes_new=1, bytes_uploaded=1)

    @asynccontextmanager
    async def open(self, ref: SnapshotRef) -> AsyncIterator[DirectoryImage]:
        self._fail()
        directory, words = self._paths(ref.snapshot_id)
        yield DirectoryImage(directory, json.loads(words.read_text()))

    async def discard(self, snapshot_id: SnapshotId) -> None:
        directory, words = self._paths(snapshot_id)
        words.unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(kw_only=True)
class World:
    """What outlives a node: its disk and its kernel."""

    directory: Path
    agents: LocalAgents
    host: FakeHost
    networks: set[int] = field(default_factory=set)
    cgroups: FakeCgroups = field(default_factory=FakeCgroups)
    rootfs: Path = field(init=False)
    images: "DirectoryImages" = field(init=False)

    def __post_init__(self) -> None:
        self.images = DirectoryImages(self.directory / "images")
        self.rootfs = self.directory / "rootfs"
        self.rootfs.mkdir()

    @classmethod
    def make(cls, directory: Path) -> "World":
        agents = LocalAgents(directory)
        return cls(directory=directory, agents=agents, host=FakeHost(agents.guest))

    @classmethod
    def in_memory(cls, directory: Path) -> "World":
        """Make a world whose guests are in memory too, so that they can be saved."""
        return MemoryWorld(directory=directory, agents=LocalAgents(directory), host=FakeHost(FakeGuest.answer))

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @staticmethod
    def template_at(rootfs: Path) -> Template:
        return Template(
            name="base",
            tag="latest",
            digest=DIGEST,
            rootfs=rootfs,
            user="root",
            env={"FROM_TEMPLATE": "1"},
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            size_bytes=1,
        )

    def node(self, **changes: object) -> Node:
        """Make a node on this world's disk and kernel; one at a time."""
        (self.data_dir / "node").mkdir(parents=True, exist_ok=True)
        settings = NodeSettings(data_dir=self.data_dir, agent_dir=self.directory, **{"create_deadline": 20, **changes})  # type: ignore[arg-type]
        slots = Slots(
            networks=FakeNetwork(self.networks),
            filestores=FakeFileStores(self.directory / "filestores"),
            cgroups=self.cgroups,
            cgroup_of=lambda index: f"/fake/m{index}",
            ahead=2,
        )
        return Node(
            node_id=NodeId("nod" + "0" * 26),
            settings=settings,
            runtimes={"fake": self.runtime()},
            templates=FakeTemplates(self.template_at(self.rootfs)),
            slots=slots,
            images=self.images,
            clock=WallClock(),
        )

    def runtime(self) -> FakeRuntime:
        return LocalRuntime(self.host, self.agents)

    @asynccontextmanager
    async def running(self, **changes: object) -> AsyncIterator[Node]:
        node = self.node(**changes)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.run)
            await node.started()
            try:
                yield node
            finally:
                tasks.cancel_scope.cancel()

    def close(self) -> None:
        for machine_id in list(self.host.machines):
            self.host.machines.pop(machine_id)
        self.agents.kill_all()


class MemoryWorld(World):
    """A world of fake guests."""

    def runtime(self) -> FakeRuntime:
        return FakeRuntime(self.host)


def order(ref: MachineRef | None = None, *, memory_mib: int = 64, disk_mib: int = 2048) -> MachineOrder:
    return MachineOrder(
        ref=ref or MachineRef(SandboxId(new_id("sbx")), 1),
        runtime="fake",
        template_digest=DIGEST,
        resources=Resources(memory_mib=memory_mib, disk_mib=disk_mib),
        env={"FROM_SANDBOX": "1"},
    )


def command(*argv: str, stdin: bool = False, pty: Pty | None = None) -> ProcessOrder:
    return ProcessOrder(
        process_id=ProcessId(new_id("prc")),
        session_id=SessionId(new_id("ses")),
        spec=CommandSpec(argv=argv, stdin=stdin, pty=pty, cwd="/"),
    )


def shell(script: str, *, stdin: bool = False) -> ProcessOrder:
    return command("/bin/sh", "-c", script, stdin=stdin)


async def read(node: Node, session_id: SessionId, *, start: int = 0) -> list[JournalRecord]:
    """Read a session to its end."""
    records = []
    async for record in node.read_session(session_id, start=start):
        assert isinstance(record, JournalRecord)
        records.append(record)
    return records


def output(records: Sequence[JournalRecord | Trimmed], kind: RecordKind = RecordKind.STDOUT) -> bytes:
    return b"".join(r.payload for r in records if isinstance(r, JournalRecord) and r.kind is kind)


async def eventually(is_so: Callable[[], bool], *, seconds: float = 30) -> None:
    """Wait until something is so that nobody tells of."""
    with anyio.fail_after(seconds):
        while not is_so():  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def observed(node: Node, count: int) -> list[MachineExited | SessionStatus]:
    """Take `count` observations."""
    found: list[MachineExited | SessionStatus] = []
    with anyio.fail_after(60):
        async for observation in node.observations():
            found.append(observation)
            if len(found) == count:
                break
    return found


def moment(*, freeze: bool = False, **changes: Any) -> SnapshotOrder:
    """Order a new snapshot."""
    snapshot_id, project_id = SnapshotId(new_id("snp")), ProjectId("prj" + "0" * 26)
    return SnapshotOrder(snapshot_id=snapshot_id, project_id=project_id, key=b"k" * 32, freeze=freeze, **changes)


async def snapshot(node: Node, ref: MachineRef, wanted: SnapshotOrder | None = None) -> SnapshotRef:
    """Save a machine; it goes on."""
    wanted = wanted or moment()
    await node.checkpoint(ref, wanted)
    result = await node.upload(wanted)
    return SnapshotRef(
        snapshot_id=wanted.snapshot_id, project_id=wanted.project_id, manifest=result.manifest, key=wanted.key
    )


async def suspend(node: Node, ref: MachineRef) -> SnapshotRef:
    """Save a machine and end it."""
    found = await snapshot(node, ref, moment(freeze=True))
    await node.release(ref)
    return found


def later(machine: MachineOrder, restore: SnapshotRef | None = None) -> MachineOrder:
    """Order the next generation of a sandbox's machine."""
    return replace(machine, ref=replace(machine.ref, generation=machine.ref.generation + 1), restore=restore)

"""Machines in memory: a runtime, a network, filestores and cgroups that need neither root nor a kernel.

`FakeHost` stands for the kernel: what is in it outlives a `FakeRuntime`, as sandboxes outlive the node.  Faults are
asked of the host: let the next start fail, let a machine die, let it not answer.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Protocol, runtime_checkable

from space.core.errors import FailedPrecondition, GuestUnreachable, InsufficientStorage, RuntimeFailed
from space.core.node import Capabilities, Exit, MachineHandle, MachineSpec
from space.core.ports import ByteStream
from space.core.sandbox import Resources

#: Serves one connection to a guest port until its stream ends.
Serve = Callable[[ByteStream], Awaitable[None]]
#: Makes what answers on a machine's ports, one for each machine; to go on from a snapshot, it is given the `bytes` that
#: `SavedGuest.save` returned as a second argument.
GuestFactory = Callable[..., Callable[[int], Serve]]

CAPACITY = 256 * 1024
STATE = "guest.state"  #: the one file of a snapshot


@runtime_checkable
class SavedGuest(Protocol):
    """What answers on a machine's ports, if its memory can be written down."""

    def __call__(self, port: int) -> Serve: ...

    def save(self) -> bytes: ...


class MemoryStream:
    """One end of a connection in memory; `send` waits once the other end leaves 256 KiB unread."""

    def __init__(self) -> None:
        self.peer: MemoryStream
        self._buffer = bytearray()
        self._is_ended = False
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()
        self.running: asyncio.Event | None = None  #: what the reader waits for: it stands still while it is not set

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while not self._buffer and not self._is_ended:
            self._filled.clear()
            await self._filled.wait()
        if self.running is not None:
            await self.running.wait()
        data = bytes(self._buffer[:max_bytes])
        del self._buffer[:max_bytes]
        self._drained.set()
        return data

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), CAPACITY):
            await self.peer._take(data[start : start + CAPACITY])

    async def _take(self, data: bytes) -> None:
        while len(self._buffer) >= CAPACITY and not self._is_ended:
            self._drained.clear()
            await self._drained.wait()
        if self._is_ended:
            raise ConnectionResetError("the other end has closed")
        self._buffer += data
        self._filled.set()

    def close(self) -> None:
        """End both directions; what was sent before can still be received."""
        for end in (self, self.peer):
            end._is_ended = True
            end._filled.set()
            end._drained.set()

    async def aclose(self) -> None:
        self.close()


def memory_streams() -> tuple[MemoryStream, MemoryStream]:
    """Return the two ends of a connection."""
    near, far = MemoryStream(), MemoryStream()
    near.peer, far.peer = far, near
    return near, far


class EchoGuest:
    """Answers on the agent's port with what was received; two ports above, counts its callers; can be saved."""

    def __init__(self, spec: MachineSpec, state: bytes | None = None) -> None:
        self._port = spec.agent_port
        self._callers = 0 if state is None else int(state)

    def __call__(self, port: int) -> Serve:
        if port not in (self._port, self._port + 2):
            raise ConnectionRefusedError(f"nothing listens on port {port}")
        return self._echo if port == self._port else self._count

    def save(self) -> bytes:
        return str(self._callers).encode()

    async def _echo(self, stream: ByteStream) -> None:
        while data := await stream.receive():
            await stream.send(data)

    async def _count(self, stream: ByteStream) -> None:
        self._callers += 1
        await stream.send(f"{self._callers}\n".encode())


@dataclass(eq=False)
class _Running:
    """What the kernel knows of a machine."""

    spec: MachineSpec
    handle: MachineHandle
    listen: Callable[[int], Serve]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)
    exit: Exit | None = None
    serving: dict["asyncio.Task[None]", MemoryStream] = field(default_factory=dict)

    def end(self, reason: Exit) -> None:
        if self.exit is None:
            self.exit = reason
            self.ended.set()
            for task, stream in self.serving.items():
                task.cancel()
                stream.close()

    @property
    def runs(self) -> bool:
        return self.exit is None


class FakeHost:
    """The kernel behind `FakeRuntime`: keeps machines while the node comes and goes."""

    def __init__(self, guest: GuestFactory = EchoGuest) -> None:
        self.guest = guest
        self.machines: dict[str, _Running] = {}
        self.start_seconds = 0.0  #: how long a start takes
        self.unreachable: set[str] = set()  #: machines that do not answer
        self.snapshot_seconds = 0.0  #: how long a snapshot takes
        self._failures: list[Exception] = []
        self._snapshot_failures: list[Exception] = []
        self._pids = count(1_000_000)

    def fail_next_start(self, message: str = "runsc said no") -> None:
        """Let the next start raise `RuntimeFailed`."""
        self._failures.append(RuntimeFailed(message))

    def fail_next_snapshot(self, error: Exception) -> None:
        """Let the next snapshot raise this."""
        self._snapshot_failures.append(error)

    def exit(self, machine_id: str, reason: str = "runtime_exited", code: int | None = None) -> None:
        """Let a machine end by itself."""
        self.machines[machine_id].end(Exit(reason=reason, code=code))

    async def boot(self, spec: MachineSpec, runtime: str, state: bytes | None = None) -> _Running:
        await asyncio.sleep(self.start_seconds)
        if self._failures:
            raise self._failures.pop(0)
        pid = next(self._pids)
        handle = MachineHandle(runtime=runtime, machine_id=spec.machine_id, pid=pid, pid_start_time=pid)
        listen = self.guest(spec) if state is None else self.guest(spec, state)
        running = _Running(spec, handle, listen)
        running.resumed.set()
        self.machines[spec.machine_id] = running
        return running

    async def save(self, running: _Running) -> bytes:
        await asyncio.sleep(self.snapshot_seconds)
        if self._snapshot_failures:
            raise self._snapshot_failures.pop(0)
        if not isinstance(running.listen, SavedGuest):
            raise FailedPrecondition("this guest cannot be saved: it keeps its memory to itself")
        return running.listen.save()


class FakeMachine:
    """A machine of `FakeHost`."""

    def __init__(self, host: FakeHost, running: _Running) -> None:
        self._host = host
        self._running = running

    @property
    def handle(self) -> MachineHandle:
        return self._running.handle

    async def pause(self) -> None:
        self._require_running()
        self._running.resumed.clear()

    async def resume(self) -> None:
        self._require_running()
        self._running.resumed.set()

    async def snapshot(self, into: Path) -> None:
        if not self._running.runs:
            raise RuntimeFailed(f"machine {self.handle.machine_id} has ended")
        try:
            into.mkdir(mode=0o700)  # noqa: ASYNC240 - a test's own disk
        except OSError as error:
            raise RuntimeFailed(f"a snapshot needs a new directory: {error}") from error
        try:
            (into / STATE).write_bytes(await self._host.save(self._running))
        except BaseException:
            shutil.rmtree(into)
            raise

    def _require_running(self) -> None:
        if not self._running.runs:
            raise GuestUnreachable(f"machine {self.handle.machine_id} has ended")

    async def stop(self, *, grace: float = 0) -> None:
        self._running.end(Exit(reason="stopped", code=-9))
        self._host.machines.pop(self.handle.machine_id, None)
        await asyncio.gather(*self._running.serving, return_exceptions=True)

    async def wait(self) -> Exit:
        await self._running.ended.wait()
        assert self._running.exit is not None
        return self._running.exit

    async def stats(self) -> Mapping[str, float]:
        return {"cpu_seconds": 0.0, "memory_bytes": 0.0, "pids": 1.0 if self._running.runs else 0.0}

    async def connect(self, port: int) -> MemoryStream:
        running, machine_id = self._running, self.handle.machine_id
        if not running.runs or machine_id in self._host.unreachable:
            raise GuestUnreachable(f"machine {machine_id} does not answer")
        try:
            serve = running.listen(port)
        except OSError as error:
            raise GuestUnreachable(str(error)) from error
        near, far = memory_streams()
        far.running = running.resumed

        async def served() -> None:
            try:
                with contextlib.suppress(ConnectionError):
                    await serve(far)
            finally:
                far.close()

        task = asyncio.create_task(served())
        running.serving[task] = far
        task.add_done_callback(lambda task: running.serving.pop(task, None))
        return near


class FakeRuntime:
    """`core.ports.Runtime` in memory; several in a row on one host are a node that restarts."""

    def __init__(self, host: FakeHost | None = None, *, name: str = "fake") -> None:
        self.host = host or FakeHost()
        self._name = name
        self._starting: dict[str, asyncio.Lock] = {}

    @property
    def name(self) -> str:
        return self._name

    async def probe(self) -> Capabilities:
        return Capabilities(
            runtime=self._name,
            is_available=True,
            version="1",
            pause=True,
            memory_snapshot=True,
            snapshot_format=f"{self._name}/1",
        )

    async def start(self, spec: MachineSpec, *, snapshot: Path | None = None) -> FakeMachine:
        async with self._starting.setdefault(spec.machine_id, asyncio.Lock()):
            running = self.host.machines.get(spec.machine_id)
            if running is None or not running.runs:
                if not spec.rootfs.is_dir():
                    raise RuntimeFailed(f"there is no template at {spec.rootfs}")
                running = await self.host.boot(spec, self._name, _read(snapshot) if snapshot else None)
            return FakeMachine(self.host, running)

    async def recover(self, handle: MachineHandle, spec: MachineSpec) -> FakeMachine | None:
        running = self.host.machines.get(handle.machine_id)
        is_same = running is not None and running.runs and running.handle == handle
        return FakeMachine(self.host, running) if running is not None and is_same else None

    async def sweep(self, keep: frozenset[str]) -> Sequence[str]:
        gone = sorted(self.host.machines.keys() - keep)
        for machine_id in gone:
            self.host.machines.pop(machine_id).end(Exit(reason="killed", code=-9))
        return gone


def _read(snapshot: Path) -> bytes:
    try:
        return (snapshot / STATE).read_bytes()
    except OSError as error:
        raise RuntimeFailed(f"{snapshot.name} is no snapshot: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSlotNetwork:
    """As `space.host.network.SlotNetwork`."""

    index: int
    netns: str
    gateway_netns: str
    guest_ip: str
    gateway_ip: str
    prefix_length: int = 31


class FakeNetwork:
    """As `space.host.network.Network`; `existing` is what the kernel would hold."""

    def __init__(self, existing: set[int] | None = None) -> None:
        self.existing = set() if existing is None else existing
        self._free: list[int] = []
        self._claimed: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._free)

    def slot(self, index: int) -> FakeSlotNetwork:
        high, low = divmod(2 * index, 256)
        return FakeSlotNetwork(
            index=index,
            netns=f"fake-{index}",
            gateway_netns="fake-gw",
            guest_ip=f"10.64.{high}.{low + 1}",
            gateway_ip=f"10.64.{high}.{low}",
        )

    async def open(self) -> None: ...

    async def prepare(self, count: int) -> None:
        index = 0
        while len(self._free) < count:
            index += 1
            if index not in self._claimed and index not in self._free:
                self.existing.add(index)
                self._free.append(index)

    async def claim(self) -> FakeSlotNetwork:
        await self.prepare(1)
        index = self._free.pop(0)
        self._claimed.add(index)
        return self.slot(index)

    async def release(self, index: int) -> None:
        if index in self._claimed:
            self._claimed.discard(index)
            self._free.append(index)

    async def sweep(self, keep: Collection[int]) -> list[int]:
        self._claimed = self.existing.intersection(keep)
        freed = sorted(self.existing.difference(keep))
        self._free = list(freed)
        return freed

    async def trim(self, count: int) -> None:
        surplus, self._free = self._free[count:], self._free[:count]
        self.existing.difference_update(surplus)

    async def remove(self) -> None:
        self.existing.clear()
        self._free, self._claimed = [], set()


class FakeFileStores:
    """As `space.host.filestore.FileStores`, with directories without a limit; `is_full` refuses."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.is_full = False

    def path(self, index: int) -> Path:
        return self.directory / str(index)

    async def create(self, index: int, disk_mib: int) -> Path:
        if self.is_full:
            raise InsufficientStorage("the host's disk is full")
        self.path(index).mkdir(parents=True, exist_ok=True)
        return self.path(index)

    async def remove(self, index: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path(index).rmdir()

    async def sweep(self, keep: Collection[int]) -> list[int]:
        there = [int(path.name) for path in self.directory.iterdir()] if self.directory.is_dir() else []
        gone = sorted(set(there).difference(keep))
        for index in gone:
            await self.remove(index)
        return gone

    async def aclose(self) -> None:
        await self.sweep(())


class FakeCgroups:
    """As `space.host.cgroup.Cgroups`, as far as a node calls it."""

    def __init__(self) -> None:
        self.existing: set[str] = set()

    def create(self, path: str, resources: Resources) -> None:
        self.existing.add(path)

    def remove(self, path: str) -> None:
        self.existing.discard(path)

    def sweep(self, keep: Collection[str]) -> list[str]:
        gone = sorted(self.existing.difference(keep))
        self.existing.intersection_update(keep)
        return gone

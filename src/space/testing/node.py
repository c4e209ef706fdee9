"""A node in memory: machines that start at once, commands whose output the test writes.

It keeps the node's promises (generations, tombstones and releases, idempotence, moments, observations) and counts what
it was asked, so that tests of the control plane can judge both ends.  `hold` stops a call with its effect half done,
`fail` makes calls fail.  What a machine remembers is a mapping; tests of files use `FileNode` or a real node.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterable, AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from space.core.command import Pty
from space.core.errors import FailedPrecondition, InUse, NotFound, RuntimeFailed, StaleGeneration, Unsupported
from space.core.file import FileEvent, FileInfo
from space.core.ids import NodeId, PooledId, ProcessId, SandboxId, SessionId, SnapshotId
from space.core.journal import JournalRecord, RecordKind, Trimmed
from space.core.node import Capabilities, Exit, MachineOrder, MachineRef, NodeFacts
from space.core.pool import PoolKey, PoolOrder
from space.core.ports import MachineExited, ProcessOrder, SessionStatus
from space.core.snapshot import SnapshotOrder, SnapshotPlan, SnapshotRef, SnapshotResult


@dataclass(slots=True)
class FakeSession:
    """A journal in memory, and what it says of its process."""

    ref: MachineRef
    order: ProcessOrder
    status: SessionStatus
    records: list[JournalRecord] = field(default_factory=list)
    stdin: bytearray = field(default_factory=bytearray)
    stdin_is_open: bool = True
    signals: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Gate:
    """A place where a call waits, its effect half done, until the test opens it."""

    entered: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        self.opened.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a snapshot of a fake machine holds."""

    sandbox_id: SandboxId
    memory: Mapping[str, Any]
    running: Mapping[SessionId, tuple[int, int]]  #: of each process that ran, how much it had printed
    chunks: frozenset[bytes]
    key: bytes
    taken_at: datetime


class FakeNode:
    """`core.ports.NodeClient` in memory."""

    def __init__(
        self,
        *,
        node_id: str = "nod" + "0" * 26,
        memory_mib: int = 65536,
        store: dict[str, Moment] | None = None,
    ) -> None:
        self.id = NodeId(node_id)
        self.memory_mib = memory_mib
        self.runtime = Capabilities(
            runtime="fake", is_available=True, version="1", pause=True, memory_snapshot=True, snapshot_format="fake-1"
        )
        self.machines: dict[SandboxId, int] = {}
        self.memory: dict[SandboxId, dict[str, Any]] = {}  #: what the machine of each sandbox knows
        self.stopped: set[SandboxId] = set()  #: machines that do not go on: paused, or frozen by a checkpoint
        self.started: list[MachineRef] = []  #: every machine that was really started, in order
        self.restored: list[MachineRef] = []  #: those of them that went on from a moment
        self.seen: dict[SandboxId, int] = {}  #: highest generation; a tombstone if no machine has it
        self.tombstones: dict[SandboxId, int] = {}
        self.released: dict[SandboxId, int] = {}  #: highest generation whose machine was given up for a snapshot
        self.used: dict[SandboxId, datetime] = {}  #: last use that a checkpoint with `quiet_since` looks at
        self.checkpoints: dict[SnapshotId, Moment] = {}  #: on this node's disk
        self.objects: dict[str, Moment] = {} if store is None else store  #: in the object store, by manifest
        self.pool: dict[PooledId, PoolKey] = {}  #: parked machines
        self.bound: dict[PooledId, MachineRef] = {}
        self.failures: list[Exception] = []  #: raised by the next calls of `ensure`, one each
        self.remove_failures: list[Exception] = []
        self.gate: asyncio.Event | None = None  #: `ensure` waits for it, with the machine half-built
        self.entered = asyncio.Event()  #: set when `ensure` waits at the gate
        self.sessions: dict[SessionId, FakeSession] = {}
        self._gates: dict[str, Gate] = {}
        self._failing: dict[str, list[Exception]] = {}
        self._observations: asyncio.Queue[MachineExited | SessionStatus] = asyncio.Queue()

    # What tests do

    def hold(self, method: str) -> Gate:
        """Let calls of `method` wait half-way until the gate is opened."""
        gate = self._gates[method] = Gate()
        return gate

    def fail(self, method: str, *errors: Exception) -> None:
        """Let the next calls of `method` fail, one with each error."""
        self._failing[method] = list(errors)

    def failures_left(self, method: str) -> int:
        """Count the calls that are still to fail."""
        return len(self._failing.get(method, ()))

    def has_failed(self, method: str) -> bool:
        """Whether all that was to fail has."""
        return not self.failures_left(method)

    def is_stopped(self, sandbox_id: SandboxId) -> bool:
        return sandbox_id in self.stopped

    async def _pass(self, method: str, *, is_half_done: bool = True) -> None:
        """Fail if the test wants that, else wait at the gate if there is one."""
        if errors := self._failing.get(method):
            raise errors.pop(0)
        if is_half_done and (gate := self._gates.get(method)) is not None:
            gate.entered.set()
            await gate.opened.wait()

    # Machines

    async def facts(self) -> NodeFacts:
        return NodeFacts(
            id=self.id,
            epoch=1,
            runtimes={"fake": self.runtime},
            vcpus=8,
            memory_mib=self.memory_mib,
            memory_available_mib=self.memory_mib,
            disk_available_mib=1 << 20,
            machines=len(self.machines),
        )

    async def ensure(self, order: MachineOrder) -> None:
        ref = order.ref
        self._see(ref)
        if self.failures:
            raise self.failures.pop(0)
        moment = self._moment(order.restore) if order.restore else None
        await self._pass("ensure")
        if self.gate is not None:
            self.entered.set()
            await self.gate.wait()
        self._see(ref)  # a delete may have come meanwhile
        if self.machines.get(ref.sandbox_id) != ref.generation:
            self._begin(ref, moment)

    def _begin(self, ref: MachineRef, moment: Moment | None) -> None:
        self.machines[ref.sandbox_id] = ref.generation
        self.memory[ref.sandbox_id] = dict(moment.memory) if moment else {}
        self.stopped.discard(ref.sandbox_id)
        self.started.append(ref)
        if moment is not None:
            self.restored.append(ref)
            self._take_over_sessions(ref, moment)

    async def pause(self, ref: MachineRef) -> None:
        self._machine(ref)
        await self._pass("pause")
        self._machine(ref)
        self.stopped.add(ref.sandbox_id)

    async def resume(self, ref: MachineRef) -> None:
        self._machine(ref)
        await self._pass("resume")
        self._machine(ref)
        self.stopped.discard(ref.sandbox_id)

    async def checkpoint(self, ref: MachineRef, order: SnapshotOrder) -> SnapshotPlan:
        self._machine(ref)
        if order.snapshot_id not in self.checkpoints:
            last = self.used.get(ref.sandbox_id)
            if order.quiet_since is not None and last is not None and last > order.quiet_since:
                raise InUse("the sandbox was used meanwhile", last_used_at=last.isoformat())
            was_stopped = ref.sandbox_id in self.stopped
            self.stopped.add(ref.sandbox_id)
            try:
                await self._pass("checkpoint")
                self._machine(ref)
                self.checkpoints[order.snapshot_id] = self._look(ref, order)
            except BaseException:
                if not was_stopped:
                    self.stopped.discard(ref.sandbox_id)
                raise
            if not (order.freeze or was_stopped):
                self.stopped.discard(ref.sandbox_id)
        moment = self.checkpoints[order.snapshot_id]
        old = self.objects[order.base.manifest].chunks if order.base else frozenset()
        return SnapshotPlan(
            chunks=sorted(moment.chunks),
            bytes_read=len(moment.chunks),
            bytes_new=len(moment.chunks - old),
            taken_at=moment.taken_at,
        )

    async def upload(self, order: SnapshotOrder) -> SnapshotResult:
        await self._pass("upload")
        moment = self.checkpoints.get(order.snapshot_id)
        if moment is None:
            raise NotFound(f"no checkpoint {order.snapshot_id} on this node")
        old = self.objects[order.base.manifest].chunks if order.base else frozenset()
        manifest = hashlib.sha256(order.snapshot_id.encode() + b"".join(sorted(moment.chunks))).hexdigest()
        self.objects[manifest] = moment
        new = len(moment.chunks - old)
        return SnapshotResult(manifest=manifest, bytes_read=len(moment.chunks), bytes_new=new, bytes_uploaded=new)

    async def discard(self, snapshot_id: SnapshotId) -> None:
        await self._pass("discard")
        self.checkpoints.pop(snapshot_id, None)

    async def release(self, ref: MachineRef) -> None:
        await self._pass("release")
        self.released[ref.sandbox_id] = max(ref.generation, self.released.get(ref.sandbox_id, 0))
        if self.machines.get(ref.sandbox_id, ref.generation + 1) <= ref.generation:
            self._end(ref.sandbox_id)

    # Machines without a sandbox

    async def park(self, order: PoolOrder) -> None:
        await self._pass("park")
        if order.id not in self.bound:
            self.pool[order.id] = order.key

    async def bind(self, pooled_id: PooledId, order: MachineOrder) -> None:
        self._see(order.ref)
        await self._pass("bind")
        self._see(order.ref)
        if self.bound.get(pooled_id) == order.ref:
            return
        if pooled_id not in self.pool:
            raise NotFound(f"machine {pooled_id} is not parked here")
        del self.pool[pooled_id]
        self.bound[pooled_id] = order.ref
        self._begin(order.ref, None)

    async def retire(self, pooled_id: PooledId) -> None:
        await self._pass("retire")
        self.pool.pop(pooled_id, None)

    async def parked(self) -> Collection[PooledId]:
        return list(self.pool)

    async def remove(self, ref: MachineRef, *, grace: float = 0) -> None:
        if self.remove_failures:
            raise self.remove_failures.pop(0)
        await self._pass("remove")
        self.tombstones[ref.sandbox_id] = max(ref.generation, self.tombstones.get(ref.sandbox_id, 0))
        if self.machines.get(ref.sandbox_id, ref.generation + 1) <= ref.generation:
            self._end(ref.sandbox_id)
        if self.machines.get(ref.sandbox_id) is None:
            self._lose(ref.sandbox_id, "stopped")

    async def report(self) -> Mapping[SandboxId, int]:
        return dict(self.machines)

    async def stats(self, ref: MachineRef) -> Mapping[str, float]:
        self._machine(ref)
        return {"cpu_seconds": 0.0, "memory_bytes": 1 << 20, "pids": 1}

    async def observations(self) -> AsyncIterator[MachineExited | SessionStatus]:
        while True:
            yield await self._observations.get()

    def crash(self, sandbox_id: SandboxId, *, reason: str = "oom", is_seen: bool = True) -> None:
        """End a machine unasked; unless `is_seen`, nobody tells."""
        generation = self.machines[sandbox_id]
        self._end(sandbox_id)
        if is_seen:
            ref = MachineRef(sandbox_id, generation)
            self._observations.put_nowait(MachineExited(ref=ref, exit=Exit(reason=reason, code=137)))
        self._lose(sandbox_id, reason)

    # Commands

    async def start_process(self, ref: MachineRef, order: ProcessOrder) -> SessionStatus:
        self._machine(ref)
        session = self.sessions.get(order.session_id)
        if session is None:
            status = SessionStatus(
                session_id=order.session_id,
                sandbox_id=ref.sandbox_id,
                process_id=order.process_id,
                os_pid=100 + len(self.sessions),
                started_at=datetime.now(UTC),
                exited_at=None,
                exit_code=None,
                signal=None,
                reason=None,
                stdout_bytes=0,
                stderr_bytes=0,
                is_lost=False,
            )
            session = self.sessions[order.session_id] = FakeSession(ref, order, status)
            at = datetime.now(UTC).isoformat()
            self._append_json(
                session, RecordKind.PROCESS_STARTED, process_id=order.process_id, os_pid=status.os_pid, at=at
            )
            self._observations.put_nowait(status)
        return session.status

    def write_output(self, session_id: SessionId, data: bytes, *, kind: RecordKind = RecordKind.STDOUT) -> None:
        """Let the process print."""
        session = self.sessions[session_id]
        status = session.status
        if kind is RecordKind.STDERR:
            offset, session.status = status.stderr_bytes, replace(status, stderr_bytes=status.stderr_bytes + len(data))
        else:
            offset, session.status = status.stdout_bytes, replace(status, stdout_bytes=status.stdout_bytes + len(data))
        self._append(session, kind, offset, data)

    def exit_process(self, session_id: SessionId, code: int | None = 0, *, signal: str | None = None) -> None:
        """Let the process end."""
        session = self.sessions[session_id]
        if session.status.exited_at is not None:
            return
        now = datetime.now(UTC)
        session.status = status = replace(session.status, exited_at=now, exit_code=code, signal=signal)
        self._append_json(
            session,
            RecordKind.PROCESS_EXITED,
            exit_code=code,
            signal=signal,
            reason=None,
            at=now.isoformat(),
            stdout_bytes=status.stdout_bytes,
            stderr_bytes=status.stderr_bytes,
        )
        self._observations.put_nowait(status)

    async def signal_process(self, ref: MachineRef, process_id: ProcessId, signal: str) -> None:
        session = self._session(ref, process_id)
        session.signals.append(signal)
        if signal in ("SIGKILL", "SIGTERM"):
            self.exit_process(session.order.session_id, None, signal=signal)

    async def write_stdin(self, ref: MachineRef, process_id: ProcessId, data: bytes) -> None:
        session = self._session(ref, process_id)
        if not session.stdin_is_open or session.status.exited_at is not None:
            raise FailedPrecondition("stdin is closed")
        session.stdin += data

    async def close_stdin(self, ref: MachineRef, process_id: ProcessId) -> None:
        self._session(ref, process_id).stdin_is_open = False

    async def resize(self, ref: MachineRef, process_id: ProcessId, size: Pty) -> None:
        self._session(ref, process_id)

    async def session_status(self, session_id: SessionId) -> SessionStatus | None:
        session = self.sessions.get(session_id)
        return session.status if session else None

    async def read_session(
        self, session_id: SessionId, *, start: int = 0, follow: bool = True
    ) -> AsyncIterator[JournalRecord | Trimmed]:
        if session_id not in self.sessions:
            raise NotFound(f"no journal of session {session_id}")
        session = self.sessions[session_id]
        position = start
        while True:
            session.changed.clear()  # before looking: what comes while a reader is at work must not be missed
            for record in [record for record in session.records if record.position > position]:
                position = record.position
                yield record
                if record.kind.is_final and session.status.exited_at is not None:
                    return  # else it was lost, and came back with its sandbox
            if not follow:
                return
            await session.changed.wait()

    async def forget_session(self, session_id: SessionId) -> None:
        self.sessions.pop(session_id, None)

    # Files

    def read_file(
        self, ref: MachineRef, path: str, *, start: int = 0, length: int | None = None
    ) -> AbstractAsyncContextManager[tuple[FileInfo, AsyncIterator[bytes]]]:
        raise _no_files()

    async def write_file(
        self,
        ref: MachineRef,
        path: str,
        source: AsyncIterable[bytes],
        *,
        mode: int | None = None,
        user: str | None = None,
    ) -> FileInfo:
        raise _no_files()

    async def stat_file(self, ref: MachineRef, path: str) -> FileInfo:
        raise _no_files()

    async def list_files(self, ref: MachineRef, path: str, *, depth: int = 1, limit: int = 1000) -> Sequence[FileInfo]:
        raise _no_files()

    async def move_file(self, ref: MachineRef, source: str, target: str) -> FileInfo:
        raise _no_files()

    async def make_directory(
        self, ref: MachineRef, path: str, *, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        raise _no_files()

    async def remove_file(self, ref: MachineRef, path: str, *, recursive: bool = False) -> None:
        raise _no_files()

    def watch_files(self, ref: MachineRef, path: str, *, recursive: bool = False) -> AsyncIterator[FileEvent]:
        raise _no_files()

    def read_archive(self, ref: MachineRef, path: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise _no_files()

    async def write_archive(
        self, ref: MachineRef, path: str, source: AsyncIterable[bytes], *, user: str | None = None
    ) -> Mapping[str, Any]:
        raise _no_files()

    def _see(self, ref: MachineRef) -> None:
        newest = max(
            self.seen.get(ref.sandbox_id, 0),
            self.tombstones.get(ref.sandbox_id, -1) + 1,
            self.released.get(ref.sandbox_id, -1) + 1,
        )
        if ref.generation < newest:
            raise StaleGeneration(f"generation {ref.generation} of {ref.sandbox_id} is older than {newest}")
        self.seen[ref.sandbox_id] = ref.generation

    def _machine(self, ref: MachineRef) -> None:
        generation = self.machines.get(ref.sandbox_id)
        if generation is None:
            raise NotFound(f"no machine of {ref.sandbox_id}")
        if ref.generation < generation:
            raise StaleGeneration(f"generation {ref.generation} of {ref.sandbox_id} is older than {generation}")
        if ref.generation > generation:
            raise NotFound(f"no machine of generation {ref.generation} of {ref.sandbox_id}")

    def _end(self, sandbox_id: SandboxId) -> None:
        del self.machines[sandbox_id]
        self.memory.pop(sandbox_id, None)
        self.stopped.discard(sandbox_id)

    def _look(self, ref: MachineRef, order: SnapshotOrder) -> Moment:
        memory = dict(self.memory.get(ref.sandbox_id, {}))
        parts = [f"{name}={value!r}".encode() for name, value in memory.items()]
        running = {
            session_id: (session.status.stdout_bytes, session.status.stderr_bytes)
            for session_id, session in self.sessions.items()
            if session.ref.sandbox_id == ref.sandbox_id and session.status.exited_at is None
        }
        return Moment(
            sandbox_id=ref.sandbox_id,
            memory=memory,
            running=running,
            chunks=frozenset(hashlib.sha256(part).digest() for part in (b"kernel", *parts)),
            key=order.key,
            taken_at=datetime.now(UTC),
        )

    def _moment(self, ref: SnapshotRef) -> Moment:
        moment = self.objects.get(ref.manifest)
        if moment is None:
            raise NotFound(f"no manifest {ref.manifest}")
        if moment.key != ref.key:
            raise RuntimeFailed("the chunks do not open with this key")
        return moment

    def _take_over_sessions(self, ref: MachineRef, moment: Moment) -> None:
        """Let the processes of this very sandbox go on; what ran later than the moment is lost."""
        for session_id, session in self.sessions.items():
            status = session.status
            if session.ref.sandbox_id != ref.sandbox_id or (status.exited_at is not None and not status.is_lost):
                continue
            printed = moment.running.get(session_id)
            if printed is None:
                continue
            session.ref = ref
            if status.is_lost or printed != (status.stdout_bytes, status.stderr_bytes):
                session.status = replace(
                    status, exited_at=None, reason=None, is_lost=False, stdout_bytes=printed[0], stderr_bytes=printed[1]
                )
                self._append_json(session, RecordKind.ROLLED_BACK, stdout_offset=printed[0], stderr_offset=printed[1])
                self._observations.put_nowait(session.status)

    def _session(self, ref: MachineRef, process_id: ProcessId) -> FakeSession:
        self._machine(ref)
        for session in self.sessions.values():
            if session.order.process_id == process_id:
                return session
        raise NotFound(f"no process {process_id}")

    def _lose(self, sandbox_id: SandboxId, reason: str) -> None:
        for session in self.sessions.values():
            if session.ref.sandbox_id == sandbox_id and session.status.exited_at is None:
                session.status = replace(session.status, exited_at=datetime.now(UTC), reason=reason, is_lost=True)
                self._append_json(session, RecordKind.SANDBOX_LOST, reason=reason)
                self._observations.put_nowait(session.status)

    def _append_json(self, session: FakeSession, kind: RecordKind, **data: Any) -> None:
        self._append(session, kind, 0, json.dumps(data).encode())

    def _append(self, session: FakeSession, kind: RecordKind, offset: int, payload: bytes) -> None:
        position = (session.records[-1].position if session.records else 0) + 13 + len(payload)
        session.records.append(JournalRecord(position, kind, offset, payload))
        session.changed.set()


def _no_files() -> Unsupported:
    return Unsupported("the fake node has no files", feature="files")

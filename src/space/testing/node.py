"""A node in memory: machines that start at once, commands whose output the test writes.

It keeps the node's promises (generations and tombstones, idempotence, observations) and counts what it was asked, so
that tests of the control plane can judge both ends.  Files are not part of it: tests of files use a real node.
"""

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from space.core.command import Pty
from space.core.errors import FailedPrecondition, NotFound, StaleGeneration, Unsupported
from space.core.file import FileEvent, FileInfo
from space.core.ids import NodeId, ProcessId, SandboxId, SessionId
from space.core.journal import JournalRecord, RecordKind, Trimmed
from space.core.node import Capabilities, Exit, MachineOrder, MachineRef, NodeFacts
from space.core.ports import MachineExited, ProcessOrder, SessionStatus


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


class FakeNode:
    """`core.ports.NodeClient` in memory."""

    def __init__(self, *, node_id: str = "nod" + "0" * 26, memory_mib: int = 65536) -> None:
        self.id = NodeId(node_id)
        self.memory_mib = memory_mib
        self.machines: dict[SandboxId, int] = {}
        self.started: list[MachineRef] = []  #: every machine that was really started, in order
        self.seen: dict[SandboxId, int] = {}  #: highest generation; a tombstone if no machine has it
        self.tombstones: dict[SandboxId, int] = {}
        self.failures: list[Exception] = []  #: raised by the next calls of `ensure`, one each
        self.remove_failures: list[Exception] = []
        self.gate: asyncio.Event | None = None  #: `ensure` waits for it, with the machine half-built
        self.entered = asyncio.Event()  #: set when `ensure` waits at the gate
        self.sessions: dict[SessionId, FakeSession] = {}
        self._observations: asyncio.Queue[MachineExited | SessionStatus] = asyncio.Queue()

    # Machines

    async def facts(self) -> NodeFacts:
        runtime = Capabilities(runtime="fake", is_available=True, version="1", pause=True)
        return NodeFacts(
            id=self.id,
            epoch=1,
            runtimes={"fake": runtime},
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
        if self.gate is not None:
            self.entered.set()
            await self.gate.wait()
            self._see(ref)  # a delete may have come meanwhile
        if self.machines.get(ref.sandbox_id) != ref.generation:
            self.machines[ref.sandbox_id] = ref.generation
            self.started.append(ref)

    async def remove(self, ref: MachineRef, *, grace: float = 0) -> None:
        if self.remove_failures:
            raise self.remove_failures.pop(0)
        self.tombstones[ref.sandbox_id] = max(ref.generation, self.tombstones.get(ref.sandbox_id, 0))
        if self.machines.get(ref.sandbox_id, ref.generation + 1) <= ref.generation:
            del self.machines[ref.sandbox_id]
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
        generation = self.machines.pop(sandbox_id)
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
            for record in [record for record in session.records if record.position > position]:
                position = record.position
                yield record
                if record.kind.is_final:
                    return
            if not follow:
                return
            session.changed.clear()
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
        newest = max(self.seen.get(ref.sandbox_id, 0), self.tombstones.get(ref.sandbox_id, -1) + 1)
        if ref.generation < newest:
            raise StaleGeneration(f"generation {ref.generation} of {ref.sandbox_id} is older than {newest}")
        self.seen[ref.sandbox_id] = ref.generation

    def _machine(self, ref: MachineRef) -> None:
        generation = self.machines.get(ref.sandbox_id)
        if generation is None:
            raise NotFound(f"no machine of {ref.sandbox_id}")
        if ref.generation < generation:
            raise StaleGeneration(f"generation {ref.generation} of {ref.sandbox_id} is older than {generation}")

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

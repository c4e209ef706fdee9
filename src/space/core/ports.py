"""What the core asks of the world.

Words: a *sandbox* is a durable row; a *machine* is the running thing, one incarnation of a sandbox, named by
`MachineRef(sandbox_id, generation)`.  A *runtime* isolates machines on this host.  A *node* is a host: it owns
machines, the channel to their guest agents and the journals of their commands.  The *store* holds what lasts; its
port is in `core/store/`.

The law: rows are committed before a node is called; every node method is idempotent; a node refuses a generation
older than the highest that it has seen (`StaleGeneration`).  Implementations live in `runtimes/`, `node/` and, as
fakes with the same conformance suites, in `space.testing`.
"""

from collections.abc import AsyncIterable, AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from space.core.command import CommandSpec, ProcessState, Pty
from space.core.file import FileEvent, FileInfo
from space.core.ids import PooledId, ProcessId, SandboxId, SessionId, SnapshotId
from space.core.journal import JournalRecord, Trimmed
from space.core.node import Capabilities, Exit, MachineHandle, MachineOrder, MachineRef, MachineSpec, NodeFacts
from space.core.objects import MAX_BYTES
from space.core.pool import PoolOrder
from space.core.snapshot import SnapshotOrder, SnapshotPlan, SnapshotResult
from space.core.template import Template


class Clock(Protocol):
    """Time, so that tests need not wait."""

    def now(self) -> datetime:
        """Return the time of day, aware and in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class ByteStream(Protocol):
    """A connection to a guest port.  One task may receive while another sends."""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return at least one byte, or `b""` once the other end has closed."""
        ...

    async def send(self, data: bytes) -> None:
        """Send all of `data`; waits while the other end does not read."""
        ...

    async def aclose(self) -> None: ...


class Machine(Protocol):
    """One running VM or container.  Every method is idempotent."""

    @property
    def handle(self) -> MachineHandle: ...

    async def pause(self) -> None:
        """Stop its vCPUs; memory and connections stay."""
        ...

    async def resume(self) -> None: ...

    async def snapshot(self, into: Path) -> None:
        """Write a moment of it into the new directory `into`; it goes on as it was, paused or running.

        What is written was verified.  Nobody may be connected to the agent: see `node/`.

        Raises:
            FailedPrecondition: something in the guest cannot be saved; `message` names it.
            InsufficientStorage: there was no room.
            RuntimeFailed: it cannot be saved.  In each case the machine goes on and `into` is gone.
        """
        ...

    async def stop(self, *, grace: float = 0) -> None:
        """End it and remove all that the runtime made for it; `grace` is in seconds.  The slot is not touched."""
        ...

    async def wait(self) -> Exit:
        """Return once it has ended, by itself or by `stop`; may be called by several tasks and again later."""
        ...

    async def stats(self) -> Mapping[str, float]:
        """Return `cpu_seconds`, `memory_bytes`, `pids` and what else the runtime can tell."""
        ...

    async def connect(self, port: int) -> ByteStream:
        """Open a stream to a guest TCP port (or its equivalent); raises `GuestUnreachable`."""
        ...


class Runtime(Protocol):
    """A way to isolate a guest.  No exec, no files, no network in it: see DESIGN §5."""

    @property
    def name(self) -> str: ...

    async def probe(self) -> Capabilities:
        """Find by trying, in under a second, what works on this host.  Never raises."""
        ...

    async def start(self, spec: MachineSpec, *, snapshot: Path | None = None) -> Machine:
        """Start a machine whose first process is the guest agent; returns before the agent answers.

        With `snapshot`, a directory that `Machine.snapshot` of the same format filled, it goes on from that moment in
        the slot of `spec`, running; its agent still has the token and the hostname of then.  The directory is only
        read, and may be removed once this has returned.  Starting an id that runs already returns that machine.

        Raises:
            RuntimeFailed: the runtime refused; nothing is left behind.
        """
        ...

    async def recover(self, handle: MachineHandle, spec: MachineSpec) -> Machine | None:
        """Find a machine that an earlier process of the node started; None once it no longer runs."""
        ...

    async def sweep(self, keep: frozenset[str]) -> Sequence[str]:
        """Remove every machine of this instance, whole or half-built, whose id is not in `keep`; return their ids."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What a store says of an object."""

    key: str
    size: int
    modified_at: datetime


class ObjectStore(Protocol):
    """Where what lasts longer than a host is kept.  A failure that may pass is `Unavailable`."""

    async def get(self, key: str, *, most: int = MAX_BYTES) -> bytes:
        """Return a whole object; raises `NotFound`, and `PayloadTooLarge` for one of more than `most` bytes.

        Others may write there too: what is larger than what was written is not even read.
        """
        ...

    async def put(self, key: str, data: bytes) -> None:
        """Write a whole object, atomically; it is durable on return.  Replaces one that is there."""
        ...

    async def head(self, key: str) -> ObjectInfo | None: ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield the objects below `prefix`, which ends in a slash; no order is promised."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; succeeds for those that are not there."""
        ...


class Sealer(Protocol):
    """Closes secrets that are kept in the store.  `context` says whose it is; what is opened for another is refused."""

    def seal(self, secret: bytes, *, context: str) -> bytes: ...

    def open(self, sealed: bytes, *, context: str) -> bytes:
        """Return the secret; raises `Unavailable` if this installation's key does not open it."""
        ...


class Templates(Protocol):
    """Finds templates on this host."""

    async def resolve(self, reference: str) -> Template:
        """Return the template that `name`, `name:tag` or `sha256:…` means; raises `NotFound`."""
        ...

    async def list(self) -> Sequence[Template]: ...


# What a node tells unasked; delivered at least once.


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineExited:
    """A machine ended without having been asked to."""

    ref: MachineRef
    exit: Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """What a session's journal says of its process; also sent whenever the process starts or ends."""

    session_id: SessionId
    sandbox_id: SandboxId
    process_id: ProcessId
    os_pid: int | None
    started_at: datetime | None
    exited_at: datetime | None
    exit_code: int | None
    signal: str | None
    reason: str | None
    stdout_bytes: int
    stderr_bytes: int
    is_lost: bool  #: the machine ended before the process was seen to

    @property
    def state(self) -> ProcessState:
        if self.is_lost:
            return ProcessState.LOST
        if self.exited_at is not None:
            return ProcessState.EXITED
        return ProcessState.RUNNING if self.started_at is not None else ProcessState.CREATED


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOrder:
    """Run this process; its id makes starting it twice harmless, in the node and in the guest."""

    process_id: ProcessId
    session_id: SessionId
    spec: CommandSpec


class NodeClient(Protocol):
    """A node, near (`node/agent.py`) or far (`node/client.py`).

    Methods that take a `MachineRef` raise `StaleGeneration` for an older generation, `NotFound` for a machine that
    the node does not have, and `GuestUnreachable` when its agent does not answer in time.
    """

    async def facts(self) -> NodeFacts: ...

    # Machines

    async def ensure(self, order: MachineOrder) -> None:
        """Make sure that the machine runs; returns once its agent has answered.

        Raises:
            StaleGeneration: a newer generation or a tombstone was seen.
            CapacityUnavailable: no slot, memory or disk is free.
            RuntimeFailed: it did not start; nothing is left behind.
        """
        ...

    async def pause(self, ref: MachineRef) -> None:
        """Stop the machine's vCPUs.  Calls that need its agent wait, and fail after the guest's deadline."""
        ...

    async def resume(self, ref: MachineRef) -> None:
        """Let it run again, after a pause or a checkpoint that froze it; returns once its agent answers."""
        ...

    async def checkpoint(self, ref: MachineRef, order: SnapshotOrder) -> SnapshotPlan:
        """Write a moment of the machine to this node's disk.  A second call returns the plan of the first.

        Raises:
            InUse: the machine was used after `order.quiet_since`.
            FailedPrecondition, InsufficientStorage, RuntimeFailed: see `Machine.snapshot`; the machine goes on.
        """
        ...

    async def upload(self, order: SnapshotOrder) -> SnapshotResult:
        """Bring a checkpoint into the object store: the chunks that it lacks, then the manifest.  Idempotent.

        Raises:
            NotFound: there is no such checkpoint on this node.
            Unavailable: the object store fails; trying again goes on where it stopped.
        """
        ...

    async def discard(self, snapshot_id: SnapshotId) -> None:
        """Forget what this node's disk has of a snapshot that is not needed any more; what is in use stays for now."""
        ...

    async def release(self, ref: MachineRef) -> None:
        """End the machine of a suspended sandbox.  Its sessions stay open: a later generation takes them over."""
        ...

    # Machines without a sandbox

    async def park(self, order: PoolOrder) -> None:
        """Start a machine and keep it; returns once its agent has answered.  Idempotent.  Raises as `ensure` does."""
        ...

    async def bind(self, pooled_id: PooledId, order: MachineOrder) -> None:
        """Make a parked machine the one of a sandbox; returns once it has its identity.  Idempotent.

        Raises:
            NotFound: it is not parked here.
            GuestUnreachable: its agent does not answer; it must be retired.
        """
        ...

    async def retire(self, pooled_id: PooledId) -> None:
        """End a machine that was not bound; succeeds if there is none, and leaves a bound one alone."""
        ...

    async def parked(self) -> Collection[PooledId]:
        """Return the machines that are parked here, or on their way."""
        ...

    async def remove(self, ref: MachineRef, *, grace: float = 0) -> None:
        """End every machine of the sandbox up to this generation and keep a tombstone; succeeds if there is none.

        Its sessions end with `sandbox_lost`, also those of a suspended sandbox.
        """
        ...

    async def report(self) -> Mapping[SandboxId, int]:
        """Return the generation of every machine that runs here."""
        ...

    async def stats(self, ref: MachineRef) -> Mapping[str, float]:
        """Return the machine's use of cpu, memory, disk and network."""
        ...

    def observations(self) -> AsyncIterator[MachineExited | SessionStatus]:
        """Yield what happens on this node from now on; one consumer."""
        ...

    # Commands

    async def start_process(self, ref: MachineRef, order: ProcessOrder) -> SessionStatus:
        """Open the session's journal and start the process; if it was started before, just return its status.

        A program that cannot be started is not an error: the journal gets `process_exited` with reason
        `spawn_failed: …` and exit code 126 or 127, as a shell would have it.
        """
        ...

    async def signal_process(self, ref: MachineRef, process_id: ProcessId, signal: str) -> None:
        """Send `signal` (`SIGTERM` …) to the process group; succeeds if the process has ended."""
        ...

    async def write_stdin(self, ref: MachineRef, process_id: ProcessId, data: bytes) -> None:
        """Write all of `data`; waits while the process does not read.  `FailedPrecondition` if it is closed."""
        ...

    async def close_stdin(self, ref: MachineRef, process_id: ProcessId) -> None: ...

    async def resize(self, ref: MachineRef, process_id: ProcessId, size: Pty) -> None: ...

    async def session_status(self, session_id: SessionId) -> SessionStatus | None:
        """Read the journal's summary; None if this node has no such journal."""
        ...

    def read_session(
        self, session_id: SessionId, *, start: int = 0, follow: bool = True
    ) -> AsyncIterator[JournalRecord | Trimmed]:
        """Yield the records after journal offset `start`, whole, once and in order, until the final one.

        With `follow` it waits for more; else it ends at the present end.  Memory use does not depend on the
        journal's size or on how slowly the reader pulls.

        Raises:
            InvalidRequest: `start` is not the end of a record.
            NotFound: there is no such journal.
        """
        ...

    async def forget_session(self, session_id: SessionId) -> None:
        """Remove a journal for good; succeeds if there is none."""
        ...

    # Files; paths are absolute in the guest, `user` owns what is created

    def read_file(
        self, ref: MachineRef, path: str, *, start: int = 0, length: int | None = None
    ) -> AbstractAsyncContextManager[tuple[FileInfo, AsyncIterator[bytes]]]:
        """Open a regular file; `NotFound`, or `FailedPrecondition` for a directory."""
        ...

    async def write_file(
        self,
        ref: MachineRef,
        path: str,
        source: AsyncIterable[bytes],
        *,
        mode: int | None = None,
        user: str | None = None,
    ) -> FileInfo:
        """Write atomically (temporary name, fsync, rename), creating parents; `InsufficientStorage` on a full disk."""
        ...

    async def stat_file(self, ref: MachineRef, path: str) -> FileInfo: ...

    async def list_files(self, ref: MachineRef, path: str, *, depth: int = 1, limit: int = 1000) -> Sequence[FileInfo]:
        """List below a directory, sorted by path, to `depth` levels, at most `limit` entries."""
        ...

    async def move_file(self, ref: MachineRef, source: str, target: str) -> FileInfo: ...

    async def make_directory(
        self, ref: MachineRef, path: str, *, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        """Create it and its parents; succeeds if it is a directory already."""
        ...

    async def remove_file(self, ref: MachineRef, path: str, *, recursive: bool = False) -> None: ...

    def watch_files(self, ref: MachineRef, path: str, *, recursive: bool = False) -> AsyncIterator[FileEvent]: ...

    def read_archive(self, ref: MachineRef, path: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Stream a directory as an uncompressed tar."""
        ...

    async def write_archive(
        self, ref: MachineRef, path: str, source: AsyncIterable[bytes], *, user: str | None = None
    ) -> Mapping[str, Any]:
        """Unpack a tar below a directory; entries that would leave it are refused.  Returns `{"files", "bytes"}`."""
        ...

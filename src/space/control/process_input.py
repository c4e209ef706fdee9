"""What callers send to a running process: signals, input, and the size of its terminal."""

import signal
from collections import OrderedDict

from space.control.audit import entry_for
from space.control.awake import Awake
from space.control.bounds import check_terminal
from space.core.account import Call
from space.core.command import Process, ProcessState, Pty
from space.core.errors import FailedPrecondition, InvalidRequest, PayloadTooLarge
from space.core.ports import Clock, NodeClient
from space.core.store import Store

MAX_STDIN_CHUNK = 4 << 20
_SIGNALS = frozenset(item.name for item in signal.Signals)
_MAX_REMEMBERED = 4096


class ProcessInput:
    """Speaks to the machine on which a process runs now, whichever it was started on."""

    def __init__(self, store: Store, node: NodeClient, clock: Clock, awake: Awake) -> None:
        self._store = store
        self._node = node
        self._clock = clock
        self._awake = awake
        self._writers: OrderedDict[tuple[str, str], None] = OrderedDict()

    def check_signal(self, name: str) -> None:
        """Raise `InvalidRequest` unless Linux has this signal."""
        if name not in _SIGNALS:
            raise InvalidRequest(f"unknown signal {name[:32]!r}; use a name such as SIGTERM", field="signal")

    def require_started(self, process: Process) -> None:
        """Raise `FailedPrecondition` for a process that waits for its first reader."""
        if process.state is ProcessState.CREATED:
            raise FailedPrecondition(
                "the process has not started: attach to its events_url first", current_state=str(process.state)
            )

    async def signal(self, call: Call, process: Process, name: str) -> None:
        """Write down who signals, then signal."""
        async with self._awake.using(call, process.sandbox_id) as ref:
            await self._store.audit.append(
                entry_for(call, self._clock.now(), target=process.id, sandbox_id=process.sandbox_id, signal=name)
            )
            await self._node.signal_process(ref, process.id, name)

    async def write(self, call: Call, process: Process, data: bytes) -> None:
        """Write to standard input, or type into the terminal."""
        if len(data) > MAX_STDIN_CHUNK:
            raise PayloadTooLarge(f"a chunk has at most {MAX_STDIN_CHUNK} bytes", limit=MAX_STDIN_CHUNK)
        self._require_input(process)
        async with self._awake.using(call, process.sandbox_id) as ref:
            await self._audit_writer(call, process)
            await self._node.write_stdin(ref, process.id, data)

    async def close(self, call: Call, process: Process) -> None:
        """Close standard input; what is closed, or has ended, stays so."""
        if process.state in (ProcessState.EXITED, ProcessState.LOST):
            return
        self._require_input(process)
        async with self._awake.using(call, process.sandbox_id) as ref:
            await self._audit_writer(call, process)
            await self._node.close_stdin(ref, process.id)

    async def resize(self, call: Call, process: Process, size: Pty) -> None:
        """Set the terminal's size."""
        check_terminal(size.cols, size.rows)
        if process.spec.pty is None:
            raise FailedPrecondition("the process has no terminal")
        self._require_running(process)
        async with self._awake.using(call, process.sandbox_id) as ref:
            await self._node.resize(ref, process.id, size)

    def _require_input(self, process: Process) -> None:
        if not process.spec.stdin and process.spec.pty is None:
            raise FailedPrecondition('the process has no input: create it with "stdin": "pipe" or a pty')
        self._require_running(process)

    def _require_running(self, process: Process) -> None:
        self.require_started(process)
        if process.state is not ProcessState.RUNNING:
            raise FailedPrecondition("the process has ended", current_state=str(process.state))

    async def _audit_writer(self, call: Call, process: Process) -> None:
        """Write down who writes: once a process and caller, since a commit for each key typed would say no more."""
        key = (process.id, call.principal.id)
        if key in self._writers:
            return
        await self._store.audit.append(
            entry_for(call, self._clock.now(), target=process.id, sandbox_id=process.sandbox_id)
        )
        self._writers[key] = None
        if len(self._writers) > _MAX_REMEMBERED:
            self._writers.popitem(last=False)

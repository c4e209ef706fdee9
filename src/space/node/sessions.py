"""Commands on this node: each has a journal; what the guest agent tells of its process is written there.

A session is *open* until its journal has a final record.  The agent is not trusted: it can write only to sessions of
its own machine, only in order, and nothing after the end.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from space.core.errors import FailedPrecondition, InvalidRequest, NotFound, PayloadTooLarge
from space.core.ids import ProcessId, SandboxId, SessionId
from space.core.journal import RecordKind
from space.core.node import MachineRef
from space.core.ports import Clock, ProcessOrder
from space.host.failpoint import failpoint
from space.node.guest import Exited, Guest, Output, SpawnFailed
from space.node.journal.file import Journal
from space.node.journal.folder import JournalFolder
from space.node.journal.summary import JournalHead
from space.node.observations import Observations

log = structlog.get_logger(__name__)

_KINDS = {"stdout": RecordKind.STDOUT, "stderr": RecordKind.STDERR, "pty": RecordKind.PTY}


@dataclass(slots=True, eq=False)
class Session:
    """A session whose process has not been seen to end."""

    journal: Journal
    ref: MachineRef  #: the machine that its process is in
    began: asyncio.Event = field(
        default_factory=asyncio.Event
    )  #: its journal says how it started, or that it could not

    beginning: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        if self.journal.has_started:
            self.began.set()


class Sessions:
    """The open sessions of all machines here."""

    def __init__(self, journals: JournalFolder, observations: Observations, clock: Clock) -> None:
        self._journals = journals
        self._observations = observations
        self._clock = clock
        self._open: dict[MachineRef, dict[ProcessId, Session]] = {}

    def load(self) -> None:
        """Take up the sessions that were open when the node last ran."""
        self._journals.load()
        for journal in self._journals.unfinished():
            self._add(journal)

    def _add(self, journal: Journal) -> Session:
        session = Session(journal, journal.head.ref)
        self._open.setdefault(session.ref, {})[journal.head.process_id] = session
        return session

    def reopen(self, journal: Journal) -> None:
        """Take up a session whose end a restore undid, or that another node began."""
        if not any(journal.head.process_id in sessions for sessions in self._open.values()):
            self._add(journal)

    def carry(self, ref: MachineRef) -> None:
        """Give a restored machine the open sessions of its sandbox's older machines."""
        for older in [each for each in self._open if each.sandbox_id == ref.sandbox_id and each < ref]:
            for process_id, session in self._open.pop(older).items():
                session.ref = ref
                self._open.setdefault(ref, {})[process_id] = session

    def machines(self) -> Iterator[MachineRef]:
        """Yield the machines that have open sessions."""
        yield from list(self._open)

    def count(self, ref: MachineRef) -> int:
        """Return how many sessions of a machine are open."""
        return len(self._open.get(ref, ()))

    def open(self, ref: MachineRef, order: ProcessOrder) -> tuple[Journal, Session | None]:
        """Make the session's journal unless there is one; the session is None if the process has ended.

        Raises:
            Conflict: the session belongs to another process.
            FailedPrecondition: the process belongs to another machine.
        """
        head = JournalHead(
            session_id=order.session_id, process_id=order.process_id, ref=ref, is_pty=order.spec.pty is not None
        )
        journal = self._journals.create(head)
        if journal.is_final:
            return journal, None
        known = self.find(ref, order.process_id)
        if known is None and journal.head.ref != ref:
            raise FailedPrecondition(f"process {order.process_id} belongs to another machine of {ref.sandbox_id}")
        return journal, known or self._add(journal)

    async def spawn(
        self, session: Session, order: ProcessOrder, guest: Guest, env: Mapping[str, str], user: str
    ) -> None:
        """Start the process, or find that it runs, and say so in the journal; raises `Unavailable`."""
        failpoint("process.before_spawn")
        offsets = _offsets(session.journal)
        try:
            os_pid = await guest.spawn(order.process_id, order.spec, env=env, default_user=user, offsets=offsets)
        except (SpawnFailed, InvalidRequest, PayloadTooLarge) as failure:
            exit_code = failure.exit_code if isinstance(failure, SpawnFailed) else 126
            body = {"exit_code": exit_code, "signal": None, "reason": f"spawn_failed: {failure}"}
            await self._end(session, RecordKind.PROCESS_EXITED, body)
            return
        failpoint("process.after_spawn")
        await self._begin(session, os_pid)

    async def _begin(self, session: Session, os_pid: int) -> None:
        journal = session.journal
        async with session.beginning:
            if not journal.has_started:
                body = {"process_id": journal.head.process_id, "os_pid": os_pid, "at": self._now()}
                await journal.append_event(RecordKind.PROCESS_STARTED, body)
                self._observations.put(journal.status())
        session.began.set()

    async def _end(self, session: Session, kind: RecordKind, body: Mapping[str, Any]) -> None:
        journal = session.journal
        stdout, stderr, pty = journal.written
        counts = {"stdout_bytes": stdout + pty, "stderr_bytes": stderr}
        await journal.append_event(kind, {**body, "at": self._now(), **counts})
        session.began.set()
        sessions = self._open.get(session.ref, {})
        sessions.pop(journal.head.process_id, None)
        if not sessions:
            self._open.pop(session.ref, None)
        self._observations.put(journal.status())

    def _now(self) -> str:
        return self._clock.now().isoformat().replace("+00:00", "Z")

    # What the agent tells

    async def deliver(self, ref: MachineRef, event: Output | Exited) -> None:
        """Write what the agent of `ref` says; raises ValueError if it contradicts what it said before."""
        session = self.find(ref, event.process_id)
        if session is None:
            return  # ended, or never was
        # The answer to the spawn comes first on the channel; its caller writes `process_started` in a moment.
        await session.began.wait()
        if isinstance(event, Output):
            kind = _KINDS[event.stream]
            if (kind is RecordKind.PTY) != session.journal.head.is_pty:
                raise ValueError(f"a process sends {event.stream} that it does not have")
            await session.journal.append_output(kind, event.offset, event.data)
            return
        failpoint("process.before_exit")
        if event.exit_code is None and event.signal is None:  # the agent cannot tell how it ended: nobody invents it
            await self._end(session, RecordKind.SANDBOX_LOST, {"reason": "process_lost"})
            return
        body = {"exit_code": event.exit_code, "signal": event.signal, "reason": event.reason}
        await self._end(session, RecordKind.PROCESS_EXITED, body)

    async def resume(self, ref: MachineRef, guest: Guest) -> None:
        """After a reconnect, have the agent send what the journals lack."""
        for process_id, session in list(self._open.get(ref, {}).items()):
            try:
                os_pid = await guest.attach(process_id, offsets=_offsets(session.journal))
            except (NotFound, FailedPrecondition) as error:
                if session.journal.has_started:
                    # An agent remembers a process, and its output, until told that both are in the journal.
                    log.error("process.vanished", process=process_id, error=error.message)
                    await self._end(session, RecordKind.SANDBOX_LOST, {"reason": "process_lost"})
            else:
                await self._begin(session, os_pid)

    async def lost(self, ref: MachineRef, reason: str) -> None:
        """Close every open session of a machine that is no more."""
        await self._lose(self._open.get(ref, {}).values(), reason)

    async def _lose(self, sessions: Iterable[Session], reason: str) -> None:
        for session, owner in [(each, each.ref) for each in sessions]:
            if session.ref == owner:  # else a restored machine has it by now
                await self._end(session, RecordKind.SANDBOX_LOST, {"reason": reason})

    async def lost_but(self, sandbox_id: SandboxId, kept: Collection[SessionId], reason: str) -> None:
        """Close every open session of a sandbox except `kept`."""
        await self._lose([each for each in self.of(sandbox_id) if each.journal.head.session_id not in kept], reason)

    def of(self, sandbox_id: SandboxId) -> list[Session]:
        """Return the open sessions of a sandbox, whichever its machine."""
        found = [sessions.values() for ref, sessions in self._open.items() if ref.sandbox_id == sandbox_id]
        return [session for sessions in found for session in sessions]

    # Looking up

    def find(self, ref: MachineRef, process_id: ProcessId) -> Session | None:
        """Return the open session of a process."""
        return self._open.get(ref, {}).get(process_id)

    def is_running(self, ref: MachineRef, process_id: ProcessId) -> bool:
        """Whether a process has started and not ended.

        Raises:
            FailedPrecondition: it has not started yet.
        """
        session = self.find(ref, process_id)
        if session is None:
            return False
        if not session.journal.has_started:
            raise FailedPrecondition(f"process {process_id} has not started yet")
        return True


def _offsets(journal: Journal) -> Mapping[str, int]:
    """Return how much of each of its streams the journal has."""
    stdout, stderr, pty = journal.written
    return {"pty": pty} if journal.head.is_pty else {"stdout": stdout, "stderr": stderr}

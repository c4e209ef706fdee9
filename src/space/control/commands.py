"""Commands: recorded, started once, streamed from a journal, and ended when asked.

`exec` costs one commit before the node is called and none after: its end reaches the row by observation.  A command
whose caller of `exec` goes away is killed, because nobody can get its answer any more; `create` is for commands that
outlive their callers.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import structlog

from space.control.access import own_sandbox
from space.control.activity import Activity
from space.control.audit import entry_for
from space.control.awake import Awake
from space.control.bounds import check_command
from space.control.cleanups import Cleanups
from space.control.closing import closing
from space.control.exec_result import Collector, ExecResult
from space.control.identity import new_id
from space.control.observed import Observed
from space.control.output import check_limit
from space.control.process_input import ProcessInput
from space.control.retention import Retention
from space.control.secret import SessionSecret
from space.control.session_tokens import SessionTokens
from space.control.starts import Starts
from space.control.tokens import Tokens
from space.control.transcript import Transcripts
from space.core.account import Call, Principal
from space.core.command import CommandSpec, Process, ProcessState, Pty, SessionToken
from space.core.errors import DeadlineExceeded, NotFound, SpaceError, StaleGeneration, Unavailable
from space.core.ids import ProcessId, SandboxId, SessionId, TokenId
from space.core.journal import JournalRecord, Trimmed
from space.core.node import MachineRef
from space.core.ports import Clock, NodeClient, SessionStatus
from space.core.store import NewProcess, Page, Store
from space.host.failpoint import failpoint

log = structlog.get_logger()

_BACKSTOP_SECONDS = 30.0  # after a command's own deadline, which the guest keeps
_CHANGE_POLL_SECONDS = 0.05
_RECONCILED_AT_ONCE = 200
_FINAL = (ProcessState.EXITED, ProcessState.LOST)


class Commands:
    """The commands of all sandboxes.  Scopes are checked by the server, everything else here."""

    def __init__(
        self,
        store: Store,
        node: NodeClient,
        clock: Clock,
        *,
        tokens: Tokens,
        activity: Activity,
        awake: Awake,
        session_token_seconds: float = 300,
        keep_hours: float = 24,
    ) -> None:
        self._store = store
        self._node = node
        self._clock = clock
        self._activity = activity
        self._awake = awake
        self._keep = timedelta(hours=keep_hours)
        self._observed = Observed(store, clock)
        self._starts = Starts(store, node, clock, self._observed)
        self._transcripts = Transcripts(store, node, self._observed)
        self._session_tokens = SessionTokens(store, tokens, clock, seconds=session_token_seconds)
        self._input = ProcessInput(store, node, clock, awake)
        self._retention = Retention(store, node, clock, keep=self._keep)
        self._cleanups = Cleanups()

    # Making commands

    async def create(self, call: Call, sandbox_id: str, spec: CommandSpec) -> tuple[Process, SessionSecret]:
        """Record a command and give out the token for its stream; with `start_now` also start it.

        Raises `NotFound`, what `core.lifecycle.require_running` raises, and `LimitExceeded`.
        """
        check_command(spec)
        new, secret = self._new(call, sandbox_id, spec, start=spec.start_now)
        async with self._starts.alone(new.process.session_id):
            process = await self._awake.attempt(call, sandbox_id, lambda: self._record(new, call))
            failpoint("command.after_create")
            if spec.start_now:
                await self._start_now(process, call)
        self._activity.touch(process.sandbox_id)
        return self._observed.lay_over(process), secret

    async def replay_create(self, call: Call, sandbox_id: str, process_id: str) -> tuple[Process, SessionSecret]:
        """Answer a repeated `create` whose key led to this process: the same process, a fresh token."""
        process = await self.get(call.principal, sandbox_id, process_id)
        if process.spec.start_now:
            await self._start_first(call.principal, process)
        secret = await self._renew(call, process)
        return await self.get(call.principal, sandbox_id, process_id), secret

    async def exec(
        self, call: Call, sandbox_id: str, spec: CommandSpec, *, max_output_bytes: int = 1 << 20
    ) -> ExecResult:
        """Run a command to its end.  Cancelling this kills the command.

        Raises what `create` raises; `DeadlineExceeded` if the guest does not keep the command's own deadline.
        """
        check_command(spec)
        check_limit(max_output_bytes)
        began = self._clock.monotonic()
        new, _ = self._new(call, sandbox_id, spec, start=True, with_token=False)
        async with self._starts.alone(new.process.session_id):
            process = await self._awake.attempt(call, sandbox_id, lambda: self._record(new, call))
            failpoint("exec.after_create")
            await self._start_now(process, call)
        with self._activity.using(process.sandbox_id):
            return await self._collect(process, began, max_output_bytes, kill_when_left=True)

    async def result(
        self, who: Principal, sandbox_id: str, process_id: str, *, max_output_bytes: int = 1 << 20
    ) -> ExecResult:
        """Answer a repeated `exec` whose key led to this process: wait for its end and read its journal again."""
        check_limit(max_output_bytes)
        began = self._clock.monotonic()
        process = await self.get(who, sandbox_id, process_id)
        await self._start_first(who, process)
        with self._activity.using(process.sandbox_id):
            return await self._collect(process, began, max_output_bytes, kill_when_left=False)

    # Streams

    async def attach(self, session_id: str, token: SessionToken | None = None, *, goes_on: bool = False) -> None:
        """Call before `read`: the first reader starts a command that waits for one.

        A new reader of a command that has not ended wakes its sandbox if that wants to be woken.  One that `goes_on`
        after a break does not: a client that reconnects by itself would keep the sandbox awake for ever.
        """
        process = await self._store.processes.find_session(session_id)
        if process is None:
            raise NotFound(f"no session {session_id[:64]}", id=session_id[:64])
        process = self._observed.lay_over(process)
        if process.state is ProcessState.CREATED:
            await self._start_first(_reader(process, token), process)
            self._activity.touch(process.sandbox_id)
        elif process.state is ProcessState.RUNNING and not goes_on:
            await self._awake.rouse(_reader(process, token), process.sandbox_id)

    def read(self, session_id: str, *, start: int = 0, follow: bool = True) -> AsyncIterator[JournalRecord | Trimmed]:
        """Yield the records after `start`; see `Transcripts.read`."""
        return self._transcripts.read(SessionId(session_id), start=start, follow=follow)

    async def verify_session_token(self, secret: str) -> SessionToken:
        """Return what the secret gives access to; raises `Unauthenticated`."""
        return await self._session_tokens.verify(secret)

    async def session_token_is_revoked(self, token: SessionToken) -> bool:
        """Whether an open stream must be cut; ask every few seconds."""
        return await self._session_tokens.is_revoked(token)

    async def renew_token(self, call: Call, sandbox_id: str, session_id: str) -> SessionSecret:
        """Give out another token for the session; older ones live to their own end."""
        process = await self._store.processes.find_session(session_id)
        if process is None or process.sandbox_id != sandbox_id or process.project_id != call.principal.project_id:
            raise NotFound(f"no session {session_id[:64]} in this sandbox", id=session_id[:64])
        return await self._renew(call, process)

    # Processes

    async def list(
        self, who: Principal, sandbox_id: str, *, limit: int = 100, cursor: str | None = None
    ) -> Page[Process]:
        """List a sandbox's processes, those that ended within the last day included, oldest first."""
        sandbox = await own_sandbox(self._store, who, sandbox_id)
        page = await self._store.processes.list(
            sandbox.id, ended_after=self._clock.now() - self._keep, limit=limit, cursor=cursor
        )
        return Page(items=[self._observed.lay_over(process) for process in page.items], next_cursor=page.next_cursor)

    async def get(self, who: Principal, sandbox_id: str, process_id: str) -> Process:
        """Return one process; also of a sandbox that has no machine, or is deleted."""
        process = await self._store.processes.find(process_id)
        if process is None or process.sandbox_id != sandbox_id or process.project_id != who.project_id:
            raise NotFound(f"no process {process_id[:64]} in this sandbox", id=process_id[:64])
        return self._observed.lay_over(process)

    async def kill(self, call: Call, sandbox_id: str, process_id: str) -> Process:
        """End a process and its group.  One that has ended stays as it is; one that never started never will."""
        process = await self.get(call.principal, sandbox_id, process_id)
        async with self._starts.alone(process.session_id):
            process = await self.get(call.principal, sandbox_id, process_id)
            if process.state is ProcessState.CREATED:
                process = await self._kill_created(call, process)
            if process.state is ProcessState.RUNNING:
                await self._send(call, process, "SIGKILL")
        return await self.get(call.principal, sandbox_id, process_id)

    async def signal(self, call: Call, sandbox_id: str, process_id: str, name: str) -> Process:
        """Send a signal such as `SIGTERM` to the process group; to one that has ended it does nothing."""
        self._input.check_signal(name)
        if name == "SIGKILL":
            return await self.kill(call, sandbox_id, process_id)
        process = await self.get(call.principal, sandbox_id, process_id)
        if process.state not in _FINAL:
            self._input.require_started(process)
            await self._send(call, process, name)
        return await self.get(call.principal, sandbox_id, process_id)

    async def write_stdin(self, call: Call, sandbox_id: str, process_id: str, data: bytes) -> None:
        """Write all of `data`; waits while the process does not read."""
        await self._input.write(call, await self.get(call.principal, sandbox_id, process_id), data)

    async def close_stdin(self, call: Call, sandbox_id: str, process_id: str) -> None:
        await self._input.close(call, await self.get(call.principal, sandbox_id, process_id))

    async def resize(self, call: Call, sandbox_id: str, process_id: str, size: Pty) -> None:
        await self._input.resize(call, await self.get(call.principal, sandbox_id, process_id), size)

    # What the node tells

    async def apply_status(self, status: SessionStatus) -> None:
        """Take over an observation; it is seen at once and written within a moment, many in one transaction."""
        self._observed.follow(status)

    async def lose_all(self, ref: MachineRef, reason: str) -> None:
        """End everything that ran on a machine which is gone, after what its journals still tell."""
        await self._observed.flush()
        await self._store.processes.lose(ref.sandbox_id, ref.generation, reason=reason, at=self._clock.now())

    async def reconcile(self) -> None:
        """At the server's start, after the node's: take over what happened while nobody wrote it down."""
        after = ("", "")
        while rows := await self._store.processes.unfinished(after=after, limit=_RECONCILED_AT_ONCE):
            after = (rows[-1].sandbox_id, rows[-1].id)
            for process in rows:
                status = await self._node.session_status(process.session_id)
                if status is not None:
                    self._observed.note(status)
            await self._observed.flush()
            for process in rows:
                if process.spec.start_now and self._observed.lay_over(process).state is ProcessState.CREATED:
                    await self._restart(process)

    async def run(self) -> None:
        """Write what was observed and forget what is long over, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._observed.run())
            tasks.create_task(self._retention.run())

    async def aclose(self) -> None:
        """Finish what is owed: kills of commands whose callers went away, and rows."""
        await self._cleanups.aclose()
        await self._awake.aclose()
        await self._observed.flush()

    # Inside

    def _new(
        self, call: Call, sandbox_id: str, spec: CommandSpec, *, start: bool, with_token: bool = True
    ) -> tuple[NewProcess, SessionSecret]:
        now = self._clock.now()
        process = Process(
            id=ProcessId(new_id("prc", self._clock)),
            session_id=SessionId(new_id("ses", self._clock)),
            sandbox_id=SandboxId(sandbox_id),
            project_id=call.principal.project_id,
            generation=0,
            spec=spec,
            state=ProcessState.CREATED,
            is_start_requested=start,
            created_at=now,
        )
        token, secret = self._session_tokens.issue(process.session_id, call.principal, now=now)
        audit = entry_for(call, now, target=process.id, sandbox_id=sandbox_id, program=spec.argv[0])
        new = NewProcess(
            process=process, token=token if with_token else None, audit=audit, idempotency=call.idempotency
        )
        return new, secret

    async def _record(self, new: NewProcess, call: Call) -> Process:
        """Commit; a caller that leaves meanwhile must not leave behind what a restart would start."""
        try:
            return await self._store.processes.create(new)
        except asyncio.CancelledError:
            if new.process.is_start_requested and call.idempotency is None:
                await self._cleanups.finish("end of a command that nobody waited for", self._give_up(new.process))
            raise

    async def _start_first(self, who: Principal, process: Process) -> None:
        await self._awake.attempt(who, process.sandbox_id, lambda: self._starts.start_first(process.session_id))

    async def _start_now(self, process: Process, call: Call) -> None:
        """Start a process that was just recorded; if that fails, it must not start later without its caller knowing.

        With an idempotency key the caller can ask again, and the process stays startable.
        """
        try:
            await self._starts.start(process, process.generation)
        except BaseException:
            if call.idempotency is None:
                await self._cleanups.finish("kill of a command that failed to start", self._give_up(process))
            raise

    async def _collect(
        self, process: Process, began: float, max_output_bytes: int, *, kill_when_left: bool
    ) -> ExecResult:
        collector = Collector(process, max_output_bytes=max_output_bytes)
        limit = process.spec.timeout_seconds + _BACKSTOP_SECONDS if process.spec.timeout_seconds else None
        try:
            async with asyncio.timeout(limit), closing(self.read(process.session_id)) as records:
                ending = await collector.follow(records)
        except BaseException as error:
            if kill_when_left and not isinstance(error, Unavailable):
                await self._cleanups.finish("kill of a command whose caller left", self._give_up(process))
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded("the guest did not end the command at its deadline", id=process.id) from error
            raise
        status = ending.status(process, collector.written)
        self._observed.note(status)
        duration = self._clock.monotonic() - began
        if status.exited_at is not None:  # the same whenever it is told
            duration = max(0.0, (status.exited_at - process.created_at).total_seconds())
        return collector.result(ending, duration_ms=round(duration * 1000))

    async def _give_up(self, process: Process) -> None:
        """Kill a process whose caller is gone, started or not, on whichever machine it is by now."""
        while True:
            status = await self._node.session_status(process.session_id)
            if status is None:
                await self._store.processes.end_unstarted(
                    process.id, reason="not_started", at=self._clock.now(), audit=None, even_if_requested=True
                )
                return
            process = await self._store.processes.find(process.id) or process
            try:
                if status.state is ProcessState.CREATED:  # ordered; only another order tells whether the guest has it
                    await self._starts.start(process, process.generation)
                ref = MachineRef(process.sandbox_id, process.generation)
                return await self._node.signal_process(ref, process.id, "SIGKILL")
            except (NotFound, StaleGeneration):
                sandbox = await self._store.sandboxes.find(process.sandbox_id)
                if sandbox is None or (sandbox.held_by is None and sandbox.generation == process.generation):
                    return  # the machine is gone, and its processes with it; or it sleeps, and keeps them
            await self._clock.sleep(_CHANGE_POLL_SECONDS)  # it is changing; `Cleanups` has a deadline

    async def _kill_created(self, call: Call, process: Process) -> Process:
        """End a process that waits for its start, or find out that it has been started.  The caller is `alone`."""
        now = self._clock.now()
        audit = entry_for(call, now, target=process.id, sandbox_id=process.sandbox_id)
        status = await self._node.session_status(process.session_id) if process.is_start_requested else None
        if status is None:
            await self._store.processes.end_unstarted(
                process.id, reason="killed", at=now, audit=audit, even_if_requested=True
            )
        elif status.state is ProcessState.CREATED:
            # A crash left it between order and start.  Whether the guest has it is known only by asking to start it.
            async with self._awake.using(call, process.sandbox_id) as ref:
                await self._starts.start(process, ref.generation)
        else:
            self._observed.note(status)
        return await self.get(call.principal, process.sandbox_id, process.id)

    async def _send(self, call: Call, process: Process, name: str) -> None:
        try:
            await self._input.signal(call, process, name)
        except SpaceError:
            current = await self.get(call.principal, process.sandbox_id, process.id)
            if current.state not in _FINAL:
                raise

    async def _renew(self, call: Call, process: Process) -> SessionSecret:
        audit = entry_for(call, self._clock.now(), target=process.session_id, sandbox_id=process.sandbox_id)
        return await self._session_tokens.renew(process.session_id, call.principal, audit)

    async def _restart(self, process: Process) -> None:
        try:
            await self._starts.start_first(process.session_id)
        except SpaceError as error:
            log.warning("process.not_started", process=process.id, error=error.message)


def _reader(process: Process, token: SessionToken | None) -> Principal:
    """Return whom a stream's token stands for; it gives access to the stream alone."""
    name = "system" if token is None else token.principal
    token_id = TokenId("") if token is None else token.token_id
    return Principal(id=name, token_id=token_id, project_id=process.project_id, scopes=frozenset())

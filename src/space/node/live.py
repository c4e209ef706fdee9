"""One machine that runs: its channel, its commands, its end."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from space.core.errors import GuestUnreachable, SpaceError
from space.core.file import FileEvent
from space.core.node import Exit, MachineOrder, MachineRef
from space.core.ports import Clock, Machine, ProcessOrder, SessionStatus
from space.host.failpoint import failpoint
from space.node.channel import GuestChannel
from space.node.full_disk import full_disk_refuses
from space.node.guest import Exited, Guest, Output
from space.node.machine_commands import MachineCommands
from space.node.record import Halt, MachineRecord
from space.node.sessions import Sessions
from space.node.settings import NodeSettings
from space.node.usage import Usage

log = structlog.get_logger(__name__)

_DRAIN_SECONDS = 2.0  #: for what the agent had sent when the machine ended
_CLOSE_SECONDS = 2.0  #: for the ends of its commands; on a full disk they wait for room, which the burial makes


class LiveMachine:
    """A machine, from the runtime's start to its burial; `run` is its task.

    `bury` is awaited until it succeeds once, after the machine has ended and its sessions are closed.
    """

    def __init__(
        self,
        record: MachineRecord,
        machine: Machine,
        *,
        sessions: Sessions,
        settings: NodeSettings,
        clock: Clock,
        bury: Callable[["LiveMachine", Exit], Awaitable[None]],
    ) -> None:
        self.record = record
        self.machine = machine
        self.halt: Halt | None = None  #: why it stands still
        self.ended = asyncio.Event()  #: it was buried
        self.usage = Usage(record.directory / "used", clock)
        self._exited = asyncio.Event()
        self.is_asked_to_end = False
        self.is_being_bound = False  #: should it end now, its sandbox gets another machine in the same generation
        self.keeps_sessions = False  #: its open sessions outlast it
        self._recording = asyncio.Lock()
        self._departures = 0  #: how often the node took leave of the agent
        self._sessions = sessions
        self._settings = settings
        self._clock = clock
        self._bury = bury
        self._commands = MachineCommands(sessions, settings, clock, usage=self.usage, guest=self.guest)
        self._tasks: anyio.abc.TaskGroup | None = None
        self._transfers = anyio.Semaphore(settings.file_concurrency)
        self._requests = anyio.Semaphore(settings.file_concurrency)
        self._channel = GuestChannel(
            machine,
            record.machine_id,
            port=settings.agent_port,
            tokens=lambda: self.record.tokens,
            silence=settings.guest_silence,
            deliver=self._deliver,
            greet=self._greet,
            clock=clock,
        )

    @property
    def ref(self) -> MachineRef:
        return self.record.ref

    async def run(self) -> None:
        """Serve the machine until it has ended, then close what was open and bury it; call it again if it fails."""
        if not self.ended.is_set():
            exit = await self._serve()
            with anyio.move_on_after(_CLOSE_SECONDS):
                await self._close_sessions(exit)
            await self._bury(self, exit)
            self.ended.set()
        await self._close_sessions(await self._exit())

    async def _close_sessions(self, exit: Exit) -> None:
        if not self.keeps_sessions:
            await self._sessions.lost(self.ref, exit.reason)

    async def _serve(self) -> Exit:
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._channel.run)
                tasks.start_soon(self._commands.run)
                exit = await self._exit()
                self._exited.set()
                await self._channel.drained(_DRAIN_SECONDS)
                tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
        return exit

    async def _exit(self) -> Exit:
        try:
            return await self.machine.wait()
        except (SpaceError, OSError) as error:
            log.error("machine.wait_failed", machine=self.record.machine_id, error=str(error))
            return Exit(reason="runtime_exited")

    async def end(self, *, grace: float = 0) -> None:
        """Stop it and return once it is buried; idempotent."""
        self.is_asked_to_end = True
        await self.machine.stop(grace=grace)
        await self.ended.wait()

    @property
    def has_exited(self) -> bool:
        """Whether the machine is known to have ended, buried or not."""
        return self._exited.is_set()

    async def answers(self, deadline: float) -> bool:
        """Wait until the agent has answered; False if the machine ends first or `deadline` seconds have passed."""
        with anyio.move_on_after(deadline):
            async with anyio.create_task_group() as tasks:

                async def give_up() -> None:
                    await self._exited.wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(give_up)
                await self._channel.wait_connected()
                tasks.cancel_scope.cancel()
                return True
        return False

    # Standing still

    async def leave(self) -> None:
        """Take leave of the agent: until `come_back` nobody is connected, and the journals have all that it sent."""
        self._departures += 1
        await self._channel.hold()

    def come_back(self) -> None:
        """Connect to the agent again, unless the machine stands still."""
        if self.halt is None:
            self._channel.go_on()

    async def stand_still(self, halt: Halt) -> None:
        """Stop it; the note on disk comes first, so that a node that restarts makes it true.

        Raises what the runtime does, and the machine goes on.
        """
        before = self.halt
        with full_disk_refuses("a note that the machine stands still"):
            await anyio.to_thread.run_sync(self.record.write_halt, halt)
        self.halt = halt
        failpoint("pause.after_note")
        if before is not None:
            return
        try:
            await self._channel.hold()
            await self.machine.pause()
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(SpaceError, OSError):
                await self.go_on()
            raise
        failpoint("pause.after_pause")

    def found_still(self, halt: Halt) -> None:
        """Take note, before `run`, that the machine stands still since an earlier life of the node."""
        self.halt = halt
        self._channel.stay_away()

    async def go_on(self) -> None:
        """Let it run; idempotent."""
        if self.halt is not None:
            await self.machine.resume()
            failpoint("resume.after_resume")
            await anyio.to_thread.run_sync(self.record.write_halt, None)
            self.halt, self.keeps_sessions = None, False
        self._channel.go_on()

    # The guest

    async def guest(self, deadline: float | None = None) -> Guest:
        """Return the agent's channel; raises `GuestUnreachable`."""
        return await self._channel.guest(self._settings.guest_deadline if deadline is None else deadline)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[Guest]:
        """Use the agent for somebody; waits while a checkpoint holds all calls up."""
        async with self.usage.call():
            yield await self.guest()

    @asynccontextmanager
    async def file_call(self, *, is_transfer: bool) -> AsyncIterator[Guest]:
        """Hold one of the places for file operations; transfers, as slow as their callers, have their own."""
        async with self._transfers if is_transfer else self._requests, self.call() as guest:
            yield guest

    async def watch_files(self, path: str, *, recursive: bool) -> AsyncGenerator[FileEvent, None]:
        """Yield changes; whatever happened while a checkpoint had nobody connected is told of as `overflow`.

        A watch lasts: it neither counts as use nor holds a place that reads and writes need.
        """
        while True:
            departures = self._departures
            try:
                async with aclosing((await self.guest()).watch_files(path, recursive=recursive)) as events:
                    async for event in events:
                        yield event
                return
            except GuestUnreachable:
                if departures == self._departures:
                    raise
            yield FileEvent(kind="overflow", path=path, at=self._clock.now())

    async def start_process(self, order: ProcessOrder) -> SessionStatus:
        """Start a process unless it was started before; returns once its journal says how that went."""
        async with self.usage.call():
            return await self._commands.start(self.record, order)

    async def _deliver(self, event: Output | Exited) -> None:
        self.usage.touch()
        await self._sessions.deliver(self.ref, event)
        if isinstance(event, Exited):
            self._commands.ended(event.process_id)

    # Its identity

    async def _greet(self, guest: Guest) -> None:
        if self.record.old_token is not None:
            await self.become(guest)
        await self._sessions.resume(self.ref, guest)

    async def become(self, guest: Guest) -> None:
        """Tell the agent who it is from now on; what it forgets by itself after that is not its sandbox's."""
        record = self.record
        await guest.personalise(
            hostname=record.hostname,
            env=record.env,
            token=record.token,
            unix_seconds=self._clock.now().timestamp(),
            disown=record.is_fork,
        )
        failpoint("personalise.after_agent")
        self.record = replace(record, old_token=None)
        if record.is_fork or self._tasks is None:
            await self._settle(record)
        else:  # telling it again, after a crash, would do no harm: nobody needs to wait for the note
            self._tasks.start_soon(self._settle, record)

    async def _settle(self, record: MachineRecord) -> None:
        async with self._recording:
            if self.record.token == record.token:  # else it has been given to a sandbox meanwhile
                try:
                    await anyio.to_thread.run_sync(record.settle)
                except OSError as error:  # a full disk: both tokens are on it, and are tried in turn
                    log.warning("machine.not_settled", machine=record.machine_id, error=error.strerror)

    async def give_to(self, order: MachineOrder) -> None:
        """Make a parked machine the one of a sandbox, on disk and here; its agent is still to `become` that."""
        async with self._recording:
            self.record = await anyio.to_thread.run_sync(self.record.bind, order)

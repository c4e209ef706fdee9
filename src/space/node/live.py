"""One machine that runs: its channel, its commands, its end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import structlog

from space.core.errors import GuestUnreachable, LimitExceeded, SpaceError
from space.core.ids import ProcessId
from space.core.node import Exit, MachineRef
from space.core.ports import Clock, Machine, ProcessOrder, SessionStatus
from space.node.channel import GuestChannel
from space.node.guest import Exited, Guest, Output
from space.node.record import MachineRecord
from space.node.sessions import Session, Sessions
from space.node.settings import NodeSettings

log = structlog.get_logger(__name__)

_DRAIN_SECONDS = 2.0  #: for what the agent had sent when the machine ended
_CLOSE_SECONDS = 2.0  #: for the ends of its commands; on a full disk they wait for room, which the burial makes
_FORGET_SECONDS = 0.2  #: after the first of some processes has ended, until the agent is told to drop them


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
        self.ended = asyncio.Event()  #: it was buried
        self._exited = asyncio.Event()
        self.is_asked_to_end = False
        self._sessions = sessions
        self._settings = settings
        self._clock = clock
        self._bury = bury
        self._ended_processes: list[ProcessId] = []
        self._has_ended_processes = asyncio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._transfers = anyio.Semaphore(settings.file_concurrency)
        self._requests = anyio.Semaphore(settings.file_concurrency)
        self._channel = GuestChannel(
            machine,
            record.ref.sandbox_id,
            port=settings.agent_port,
            token=record.token,
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
                await self._sessions.lost(self.ref, exit.reason)
            await self._bury(self, exit)
            self.ended.set()
        await self._sessions.lost(self.ref, (await self._exit()).reason)

    async def _serve(self) -> Exit:
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._channel.run)
                tasks.start_soon(self._forget_ended)
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
            log.error("machine.wait_failed", machine=self.ref.machine_id, error=str(error))
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

    # The guest

    async def guest(self, deadline: float | None = None) -> Guest:
        """Return the agent's channel; raises `GuestUnreachable`."""
        return await self._channel.guest(self._settings.guest_deadline if deadline is None else deadline)

    @asynccontextmanager
    async def file_guest(self, *, is_transfer: bool) -> AsyncIterator[Guest]:
        """Hold one of the places for file operations; transfers, as slow as their callers, have their own."""
        async with self._transfers if is_transfer else self._requests:
            yield await self.guest()

    async def start_process(self, order: ProcessOrder) -> SessionStatus:
        """Start a process unless it was started before; returns once its journal says how that went."""
        limit = self._settings.max_processes
        if self._sessions.count(self.ref) >= limit and self._sessions.find(self.ref, order.process_id) is None:
            raise LimitExceeded(f"{limit} commands run in {self.ref.sandbox_id} already", quota="processes")
        journal, session = self._sessions.open(self.ref, order)
        if session is not None and not session.began.is_set():
            # In a task of the machine's: a caller who leaves must not keep the answer from being written down.
            failure: list[SpaceError] = []
            done = asyncio.Event()
            if self._tasks is None:
                raise GuestUnreachable(f"the machine of {self.ref.sandbox_id} has ended, or is being reconnected")
            self._tasks.start_soon(self._spawn, session, order, failure, done)
            with anyio.move_on_after(self._settings.guest_deadline):
                await done.wait()
            if failure:
                raise failure[0]
            if not session.began.is_set():
                raise GuestUnreachable(f"the agent of {self.ref.sandbox_id} does not answer; try again")
        return journal.status()

    async def _spawn(
        self, session: Session, order: ProcessOrder, failure: list[SpaceError], done: asyncio.Event
    ) -> None:
        try:
            guest = await self.guest()
            await self._sessions.spawn(session, order, guest, self.record.env, self.record.default_user)
        except SpaceError as error:  # whatever an agent refuses with, it is this command's caller who hears it
            failure.append(error)
        finally:
            done.set()

    async def _deliver(self, event: Output | Exited) -> None:
        await self._sessions.deliver(self.ref, event)
        if isinstance(event, Exited):
            self._ended_processes.append(event.process_id)
            self._has_ended_processes.set()

    async def _forget_ended(self) -> None:
        """Let the agent drop processes whose end is in their journal: in batches, out of the next command's way."""
        while True:
            await self._has_ended_processes.wait()
            await self._clock.sleep(_FORGET_SECONDS)
            self._has_ended_processes.clear()
            ended, self._ended_processes = self._ended_processes, []
            async with anyio.create_task_group() as tasks:
                for process_id in ended:
                    tasks.start_soon(self._forget, process_id)

    async def _forget(self, process_id: ProcessId) -> None:
        try:
            await (await self.guest()).forget(process_id)
        except SpaceError as error:
            log.debug("guest.forget_failed", machine=self.ref.machine_id, error=str(error))

    async def _greet(self, guest: Guest) -> None:
        await self._sessions.resume(self.ref, guest)

"""Starting the commands of one machine, and letting its agent forget them."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import anyio.abc
import structlog

from space.core.errors import GuestUnreachable, LimitExceeded, SpaceError
from space.core.ids import ProcessId
from space.core.ports import Clock, ProcessOrder, SessionStatus
from space.node.guest import Guest
from space.node.record import MachineRecord
from space.node.sessions import Session, Sessions
from space.node.settings import NodeSettings
from space.node.usage import Usage

log = structlog.get_logger(__name__)

_FORGET_SECONDS = 0.2  #: after the first of some processes has ended, until the agent is told to drop them


class MachineCommands:
    """The commands of one machine; `run` is its task."""

    def __init__(
        self,
        sessions: Sessions,
        settings: NodeSettings,
        clock: Clock,
        *,
        usage: Usage,
        guest: Callable[[], Awaitable[Guest]],
    ) -> None:
        self._sessions = sessions
        self._settings = settings
        self._clock = clock
        self._usage = usage
        self._guest = guest
        self._ended: list[ProcessId] = []
        self._has_ended = asyncio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None

    async def run(self) -> None:
        """Serve until cancelled, with the machine."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                await self._forget_ended()
        finally:
            self._tasks = None

    async def start(self, record: MachineRecord, order: ProcessOrder) -> SessionStatus:
        """See `LiveMachine.start_process`."""
        ref, limit = record.ref, self._settings.max_processes
        if self._sessions.count(ref) >= limit and self._sessions.find(ref, order.process_id) is None:
            raise LimitExceeded(f"{limit} commands run in {ref.sandbox_id} already", quota="processes")
        journal, session = self._sessions.open(ref, order)
        if session is not None and not session.began.is_set():
            # In a task of the machine's: a caller who leaves must not keep the answer from being written down.
            failure: list[SpaceError] = []
            done = asyncio.Event()
            if self._tasks is None:
                raise GuestUnreachable(f"the machine of {ref.sandbox_id} has ended, or is being reconnected")
            self._tasks.start_soon(self._spawn, record, session, order, failure, done)
            with anyio.move_on_after(self._settings.guest_deadline):
                await done.wait()
            if failure:
                raise failure[0]
            if not session.began.is_set():
                raise GuestUnreachable(f"the agent of {ref.sandbox_id} does not answer; try again")
        return journal.status()

    async def _spawn(
        self,
        record: MachineRecord,
        session: Session,
        order: ProcessOrder,
        failure: list[SpaceError],
        done: asyncio.Event,
    ) -> None:
        try:
            with self._usage.counted():
                guest = await self._guest()
                await self._sessions.spawn(session, order, guest, record.env, record.default_user)
        except SpaceError as error:  # whatever an agent refuses with, it is this command's caller who hears it
            failure.append(error)
        finally:
            done.set()

    def ended(self, process_id: ProcessId) -> None:
        """Its end is in its journal."""
        self._ended.append(process_id)
        self._has_ended.set()

    async def _forget_ended(self) -> None:
        """Let the agent drop processes whose end is in their journal: in batches, out of the next command's way."""
        while True:
            await self._has_ended.wait()
            await self._clock.sleep(_FORGET_SECONDS)
            self._has_ended.clear()
            ended, self._ended = self._ended, []
            async with anyio.create_task_group() as tasks:
                for process_id in ended:
                    tasks.start_soon(self._forget, process_id)

    async def _forget(self, process_id: ProcessId) -> None:
        try:
            await (await self._guest()).forget(process_id)
        except SpaceError as error:
            self._ended.append(process_id)  # with the next ones
            log.debug("guest.forget_failed", process=process_id, error=str(error))

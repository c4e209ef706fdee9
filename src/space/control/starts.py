"""Starting a recorded process: once, whoever asks and whatever crashes.

The wish to start is written down before the node is told, and the node starts an id only once.  So any reader may
repeat the start after a crash, and a kill that finds no wish written down ends the process without starting it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from space.control.observed import Observed
from space.core.command import Process, ProcessState
from space.core.errors import NotFound
from space.core.ids import SessionId
from space.core.node import MachineRef
from space.core.ports import Clock, NodeClient, ProcessOrder
from space.core.store import Store
from space.host.failpoint import failpoint


class Starts:
    """Starts processes, one caller at a time for each."""

    def __init__(self, store: Store, node: NodeClient, clock: Clock, observed: Observed) -> None:
        self._store = store
        self._node = node
        self._clock = clock
        self._observed = observed
        self._locks: dict[SessionId, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def alone(self, session_id: SessionId) -> AsyncIterator[None]:
        """Keep every other start and kill of this process out."""
        lock, users = self._locks.get(session_id, (asyncio.Lock(), 0))
        self._locks[session_id] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(session_id)
            if users > 1:
                self._locks[session_id] = lock, users - 1

    async def start_first(self, session_id: SessionId) -> None:
        """Start the process if nobody has; many may ask at once, and again after a crash."""
        process = await self._find(session_id)
        if process.state is not ProcessState.CREATED:
            return
        async with self.alone(session_id):
            process = await self._find(session_id)
            if process.state is not ProcessState.CREATED:
                return
            process, generation = await self._store.processes.request_start(session_id, at=self._clock.now())
            if generation is not None:
                failpoint("process.after_start_request")
                await self.start(process, generation)

    async def start(self, process: Process, generation: int) -> None:
        """Tell the node; the wish has been recorded and the caller is `alone`."""
        order = ProcessOrder(process_id=process.id, session_id=process.session_id, spec=process.spec)
        status = await self._node.start_process(MachineRef(process.sandbox_id, generation), order)
        failpoint("process.after_start")
        self._observed.note(status)

    async def _find(self, session_id: SessionId) -> Process:
        process = await self._store.processes.find_session(session_id)
        if process is None:
            raise NotFound(f"no session {session_id[:64]}", id=session_id[:64])
        return self._observed.lay_over(process)

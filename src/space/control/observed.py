"""What is known of processes before the store is: so that answers are never behind what a caller has seen.

A process's end reaches its row by the node's observation, some milliseconds after the last byte was read.  Whoever
saw the end notes it here; reads lay it over the row, and a task writes what no observation has brought meanwhile.
"""

import asyncio
from dataclasses import replace

import structlog

from space.core.command import Process, ProcessState
from space.core.errors import SpaceError
from space.core.ids import ProcessId
from space.core.ports import Clock, SessionStatus
from space.core.store import Store

log = structlog.get_logger()

_ORDER = (ProcessState.CREATED, ProcessState.RUNNING, ProcessState.LOST, ProcessState.EXITED)
_BATCH = 256


class Observed:
    """Statuses that may not be in the store yet."""

    def __init__(self, store: Store, clock: Clock, *, patience_seconds: float = 0.5) -> None:
        self._store = store
        self._clock = clock
        self._patience = patience_seconds
        self._noted: dict[ProcessId, SessionStatus] = {}
        self._is_due = asyncio.Event()

    def note(self, status: SessionStatus) -> None:
        """Remember; something older does not replace something newer."""
        known = self._noted.get(status.process_id)
        if status.state is ProcessState.CREATED or (known is not None and _is_older(status.state, known.state)):
            return
        self._noted[status.process_id] = status
        self._is_due.set()

    def follow(self, status: SessionStatus) -> None:
        """Remember an observation.  They come in order: what runs after its end was brought back by a restore.

        Then the end is not to be written any more: the row has been brought back as well, or will be.
        """
        known = self._noted.get(status.process_id)
        if known is not None and status.state is ProcessState.RUNNING and _is_older(status.state, known.state):
            del self._noted[status.process_id]
        self.note(status)

    def lay_over(self, process: Process) -> Process:
        """Return the process as it is by all that is known."""
        status = self._noted.get(process.id)
        if status is None or not _is_older(process.state, status.state):
            return process
        return with_status(process, status)

    async def flush(self) -> None:
        """Write what the rows do not have yet; on failure it stays noted."""
        while batch := list(self._noted.values())[:_BATCH]:
            missing = [status for status in batch if await self._is_missing(status)]
            if missing:
                await self._store.processes.observe(*missing)
            for status in batch:
                if self._noted.get(status.process_id) is status:
                    del self._noted[status.process_id]

    async def run(self) -> None:
        """Write what observations did not, a moment after it was noted; until cancelled."""
        while True:
            await self._is_due.wait()
            await self._clock.sleep(self._patience)
            self._is_due.clear()
            try:
                await self.flush()
            except SpaceError as error:
                log.warning("processes.not_written", error=error.message)
                self._is_due.set()

    async def _is_missing(self, status: SessionStatus) -> bool:
        row = await self._store.processes.find(status.process_id)
        return row is not None and _is_older(row.state, status.state)


def with_status(process: Process, status: SessionStatus) -> Process:
    """Return the process as its journal tells it."""
    return replace(
        process,
        state=status.state,
        os_pid=status.os_pid if status.os_pid is not None else process.os_pid,
        exit_code=status.exit_code,
        signal=status.signal,
        reason=status.reason,
        stdout_bytes=status.stdout_bytes,
        stderr_bytes=status.stderr_bytes,
        started_at=process.started_at or status.started_at,
        exited_at=status.exited_at,
    )


def _is_older(state: ProcessState, other: ProcessState) -> bool:
    return _ORDER.index(state) < _ORDER.index(other)

"""What a node tells unasked, queued until the one consumer takes it."""

import asyncio
from collections.abc import AsyncIterator

from space.core.ids import SessionId
from space.core.node import MachineRef
from space.core.ports import MachineExited, SessionStatus

Observation = MachineExited | SessionStatus


class Observations:
    """A queue with one place for each machine and session: the newest word counts, and it cannot grow without end."""

    def __init__(self) -> None:
        self._waiting: dict[MachineRef | SessionId, Observation] = {}
        self._arrived = asyncio.Event()

    def put(self, observation: Observation) -> None:
        key = observation.ref if isinstance(observation, MachineExited) else observation.session_id
        self._waiting.pop(key, None)
        self._waiting[key] = observation
        self._arrived.set()

    async def take(self) -> AsyncIterator[Observation]:
        """Yield what is there and then what comes."""
        while True:
            while self._waiting:
                yield self._waiting.pop(next(iter(self._waiting)))
            self._arrived.clear()
            await self._arrived.wait()

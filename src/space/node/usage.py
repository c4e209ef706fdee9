"""Who uses a machine, and when anybody last did; everybody can be held up for the short moment of a checkpoint."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import anyio

from space.core.errors import InUse
from space.core.ports import Clock

_NOTE_SECONDS = 1.0  #: between two notes on disk of the last use


class Usage:
    """The calls under way to one machine.

    The time of the last use is also the time of a file, so that a node that restarts knows it.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._calls = 0
        self._is_held = False
        self._free = asyncio.Event()
        self._quiet = asyncio.Event()
        self._noted = 0.0
        self._last = clock.now()
        with suppress(OSError):
            self._last = datetime.fromtimestamp(path.stat().st_mtime + _NOTE_SECONDS, UTC)

    def touch(self) -> None:
        """The machine is being used."""
        self._last = self._clock.now()
        now = self._clock.monotonic()
        if now - self._noted >= _NOTE_SECONDS or not self._noted:
            self._noted = now
            with suppress(OSError):  # a full disk, or the machine is being removed
                os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
                os.utime(self._path, (self._last.timestamp(),) * 2)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Count a call to the machine; one that comes while all are held waits."""
        while self._is_held:
            await self._free.wait()
        with self.counted():
            yield

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what belongs to a call that has begun."""
        self._calls += 1
        self.touch()
        try:
            yield
        finally:
            self._calls -= 1
            self.touch()
            if not self._calls:
                self._quiet.set()

    def require_quiet(self, since: datetime | None) -> None:
        """Raise `InUse` if the machine was used after `since`, or is being used."""
        if since is not None and (self._calls or self._last > since):
            raise InUse("the sandbox is in use again", last_used_at=self._last.isoformat())

    @asynccontextmanager
    async def held(self, seconds: float) -> AsyncIterator[None]:
        """Let nobody begin a call; give those that have begun `seconds` to end."""
        self._is_held = True
        self._free.clear()
        try:
            with anyio.move_on_after(seconds):
                while self._calls:
                    self._quiet.clear()
                    await self._quiet.wait()
            yield
        finally:
            self._is_held = False
            self._free.set()

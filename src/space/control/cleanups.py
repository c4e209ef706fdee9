"""Work that must be done although the request that owes it is going away."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from space.core.errors import SpaceError

log = structlog.get_logger()


class Cleanups:
    """Owns such work: each piece has a deadline, and `aclose` waits for all of them."""

    def __init__(self, *, seconds: float = 30) -> None:
        self._seconds = seconds
        self._tasks: set[asyncio.Task[None]] = set()

    async def finish(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        """Run `work` to its end; a cancelled caller leaves at once and the work goes on.  Failures are logged."""
        task = asyncio.create_task(self._run(name, work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def aclose(self) -> None:
        """Wait until all is done; each piece ends by its deadline."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await work
        except (SpaceError, TimeoutError) as error:
            log.warning("cleanup.failed", cleanup=name, error=str(error) or type(error).__name__)

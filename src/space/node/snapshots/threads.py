"""Work that is too long for the event loop, in a few threads; and the same thing done to many."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

#: Chunks on their way at once: enough for a store that takes 20 ms to answer, and at most about 20 MiB of memory.
AT_ONCE = 8

Item = TypeVar("Item")
Result = TypeVar("Result")


class Threads:
    """As many threads as there are cores, for hashing, compressing and copying."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max(2, os.cpu_count() or 1), "snapshots")

    def start(self, call: Callable[..., object], *arguments: object) -> "Future[object]":
        """Let it be done some time."""
        return self._pool.submit(call, *arguments)

    async def run(self, call: Callable[..., Result], *arguments: object) -> Result:
        """Return what `call` returns.  A cancelled caller leaves once the call is over, so nothing works behind it."""
        working = asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.wait([working])
            if not working.cancelled():
                working.exception()  # seen
            raise

    async def aclose(self) -> None:
        """Wait until all is done."""
        await asyncio.to_thread(self._pool.shutdown)


async def each(items: Iterable[Item], work: Callable[[Item], Awaitable[object]], *, at_once: int) -> None:
    """Do the work for each item, some at once; the first failure ends it and is raised."""
    waiting = iter(items)

    async def take() -> None:
        for item in waiting:
            await work(item)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(take())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None

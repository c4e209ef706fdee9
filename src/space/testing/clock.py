"""A clock that tests turn by hand."""

import asyncio
import heapq
from datetime import UTC, datetime, timedelta

_START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """`core.ports.Clock`; time stands still until `advance`."""

    def __init__(self, start: datetime = _START) -> None:
        self._now = start
        self._seconds = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._seconds

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._seconds + seconds, self._count, future))
        await future

    def advance(self, seconds: float) -> None:
        """Move on and wake whoever's time has come; they run when the caller next awaits."""
        self._now += timedelta(seconds=seconds)
        self._seconds += seconds
        while self._sleepers and self._sleepers[0][0] <= self._seconds:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)

"""The real clock."""

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """Time as this host has it."""

    def now(self) -> datetime:
        """Return the time in whole milliseconds, as it is stored: what is answered now equals what is read later."""
        now = datetime.now(UTC)
        return now.replace(microsecond=now.microsecond // 1000 * 1000)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

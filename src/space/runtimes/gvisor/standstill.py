"""Whether a sandbox stands still: a sentry counts pauses and does not tell how many there were.

Paused twice it needs two resumes; one too many is a panic, and the end of the machine (runsc 20240729).  So it is noted
beside the bundle, before and after each of them, by names of an empty file: a full disk must not keep anybody asleep.
If a crash came in between it is uncertain, and only what the guest does tells.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path

from space.core.errors import RuntimeFailed

MOST = 8  # resumes until a machine of which it is uncertain must run


class Standstill(StrEnum):
    """What is noted, as the name of a file; nothing for a machine that runs."""

    YES = "paused"
    UNCERTAIN = "perhaps-paused"


class Pauses:
    """Pauses and resumes one sandbox; both may be repeated.

    `ask` calls the sentry.  `runs` tells whether the guest does something; it is asked only after a crash.
    """

    def __init__(
        self, directory: Path, *, ask: Callable[[str], Awaitable[None]], runs: Callable[[], Awaitable[bool]]
    ) -> None:
        self._directory = directory
        self._ask = ask
        self._runs = runs
        self._changing = asyncio.Lock()

    async def pause(self) -> None:
        async with self._changing:
            before = self._read()
            if before is not Standstill.YES:
                self._path(Standstill.UNCERTAIN).touch(0o600)
                await self._ask("Pause")
                if before is None:  # else it may have been paused already
                    self._path(Standstill.UNCERTAIN).rename(self._path(Standstill.YES))

    async def resume(self) -> None:
        """Raises `RuntimeFailed` if it cannot be brought to run again."""
        async with self._changing:
            before = self._read()
            if before is None:
                return
            if before is Standstill.YES:
                self._path(before).rename(self._path(Standstill.UNCERTAIN))
            else:
                await self._ask("Pause")  # at least once: a resume is allowed
            await self._ask("Resume")
            if before is Standstill.UNCERTAIN:
                await self._resume_until_it_runs()
            self._path(Standstill.UNCERTAIN).unlink()

    async def _resume_until_it_runs(self) -> None:
        for _ in range(MOST):
            if await self._runs():
                return
            await self._ask("Resume")
        raise RuntimeFailed("the machine stands still whatever is done")

    def _read(self) -> Standstill | None:
        return next((state for state in Standstill if self._path(state).exists()), None)

    def _path(self, state: Standstill) -> Path:
        return self._directory / state

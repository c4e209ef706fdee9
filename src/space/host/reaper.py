"""Reaping: this process adopts what its children leave behind, and collects it.

A sandbox detaches from the `runsc` that started it.  Without us its corpse goes to pid 1, which in a container may
collect late or never, and runsc takes a zombie for alive (`runsc delete` took 1.3 s here instead of 0.2 s).  A
subreaper that does not reap is worse: delete hung for over two minutes (gvisor.md, trap 5).

Exit statuses belong to whoever started or watches a process.  So every such pid is registered in `owned` before it
can end, and the sweep here takes only zombies that nobody registered and that nobody has collected for a while:
code outside `space.host` may use `subprocess` without losing a status to us.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from space.host import linux

SWEEP_SECONDS = 0.5
PATIENCE_SECONDS = 1.0  #: for orphans in a session of their own, which no `subprocess` of this process waits for
LONG_PATIENCE_SECONDS = 60.0  #: for what might be a child that somebody has yet to wait for


class Owned:
    """The pids whose exit status somebody in this process will collect."""

    def __init__(self) -> None:
        self._pids: set[int] = set()
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def registering(self) -> Iterator[Callable[[int], None]]:
        """Hold back the sweep while a process is made, so that it is registered before it can be swept."""
        with self._lock:
            yield self._pids.add

    def add(self, pid: int) -> None:
        with self._lock:
            self._pids.add(pid)

    def discard(self, pid: int) -> None:
        with self._lock:
            self._pids.discard(pid)

    def reap_others(self, may_reap: Callable[[int], bool]) -> list[int]:
        """Collect every zombie child that is not registered and that `may_reap` accepts."""
        reaped = []
        with self._lock:
            for pid in zombie_children():
                if pid not in self._pids and may_reap(pid) and collect(pid) is not None:
                    reaped.append(pid)
        return reaped


owned = Owned()


def collect(pid: int) -> int | None:
    """Take the exit status of a child that has ended (negative for a signal); None if it is not ours or still runs."""
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None
    return None if result is None else _status(result)


def collect_by_pidfd(pidfd: int) -> int | None:
    """As `collect`, for a process whose pid may by now belong to another."""
    try:
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None
    return None if result is None else _status(result)


def _status(result: os.waitid_result) -> int:
    return int(result.si_status if result.si_code == os.CLD_EXITED else -result.si_status)


def zombie_children() -> list[int]:
    """Return children of this process that have ended; cheap when there are none."""
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return []
    except ChildProcessError:
        return []
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread ended meanwhile
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return [pid for pid in found if _state_and_session(pid)[0] == "Z"]


def _state_and_session(pid: int) -> tuple[str, int]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return fields[0], int(fields[3])


class Reaper:
    """Makes this process the subreaper of its descendants for as long as it is entered; one a process."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Reaper":
        linux.become_subreaper()
        self._task = asyncio.create_task(self._run(), name="reaper")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None  # noqa: S101
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        linux.stop_being_subreaper()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep()

    def sweep(self) -> list[int]:
        """Collect orphans that have waited long enough; return their pids."""
        now = time.monotonic()
        session = os.getsid(0)
        seen: dict[int, float] = {}

        def may_reap(pid: int) -> bool:
            seen[pid] = self._since.get(pid, now)
            own_session = _state_and_session(pid)[1] == session
            return now - seen[pid] >= (LONG_PATIENCE_SECONDS if own_session else PATIENCE_SECONDS)

        reaped = owned.reap_others(may_reap)
        self._since = seen
        return reaped

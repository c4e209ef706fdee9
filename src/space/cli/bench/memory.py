"""Watching how much memory a process of this machine uses."""

import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Literal

INTERVAL = 0.1


class ResidentMemory:
    """Samples a process's resident memory while it is entered; all None if there is no such process here."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.before_mib = self.now()
        self.peak_mib = self.before_mib

    def now(self) -> float | None:
        """Return the present size in MiB."""
        if self._pid is None:
            return None
        try:
            lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), None)

    def _watch(self) -> None:
        while not self._stopped.wait(INTERVAL):
            found = self.now()
            if found is not None:
                self.peak_mib = max(found, self.peak_mib or 0.0)

    def __enter__(self) -> "ResidentMemory":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        self._stopped.set()
        self._thread.join()
        return False


def server_pid() -> int | None:
    """Return the process of this machine's server, if the command line talks to it and may know."""
    from space.sdk.settings import cli_file

    try:
        return int((cli_file().parent / "run" / "up.pid").read_text())
    except (OSError, ValueError):
        return None


def pss_mib(pids: Iterable[int]) -> float:
    """Return the proportional set size of these processes: shared pages count as a share.  Needs root."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return round(total / 1024, 2)

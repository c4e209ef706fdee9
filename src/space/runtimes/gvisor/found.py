"""runsc's processes, as /proc shows them: also those that `runsc list` has lost (gvisor.md §8)."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from space.host.daemon import start_time_of

SENTRY, GOFER, COMMAND = "runsc-sandbox", "runsc-gofer", "runsc"


@dataclass(frozen=True, slots=True)
class Found:
    """A process that was started with our `--root`."""

    pid: int
    start_time: int
    machine_id: str | None
    kind: str  #: `SENTRY`, `GOFER`, or `COMMAND` for a call of runsc and what else it started
    verb: str  #: of a call: `run`, `checkpoint` …
    cgroup: str | None  #: below the memory controller, or of v2


def processes(root: Path) -> Iterator[Found]:
    """Yield every process on this host whose command line names this runsc root."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            argv = (entry / "cmdline").read_bytes().split(b"\0")
            if f"--root={root}".encode() in argv:
                pid = int(entry.name)
                start_time = start_time_of(pid)
                if start_time is not None:
                    yield Found(pid, start_time, _machine_id(argv), _kind(argv[0]), _verb(argv), _cgroup(entry))


def has_sentry(pids: Iterable[int]) -> bool:
    """Whether a sandbox's kernel is among these processes."""
    for pid in pids:
        with contextlib.suppress(OSError):
            if _kind(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]) == SENTRY:
                return True
    return False


def _kind(program: bytes) -> str:
    name = program.decode(errors="replace").rpartition("/")[2]
    return name if name in (SENTRY, GOFER) else COMMAND


def _verb(argv: list[bytes]) -> str:
    """Return the first word after the flags, of which `--root` is one."""
    start = next(index for index, word in enumerate(argv) if word.startswith(b"--root="))
    return next((word.decode(errors="replace") for word in argv[start:] if not word.startswith(b"-")), "")


def _machine_id(argv: list[bytes]) -> str | None:
    """Return the id: the gofer has it in its bundle's path, `exec` before the guest's program, others at the end."""
    for argument in argv:
        if match := re.fullmatch(rb"--bundle=.*/([a-z0-9]{35})", argument):
            return match[1].decode()
    words = [argument.decode(errors="replace") for argument in argv if argument]
    candidates = words if _verb(argv) == "exec" else words[-1:]
    return next((word for word in candidates if re.fullmatch(r"[a-z0-9]{35}", word)), None)


def _cgroup(entry: Path) -> str | None:
    for line in (entry / "cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") or (number == "0" and path != "/"):
            return path
    return None

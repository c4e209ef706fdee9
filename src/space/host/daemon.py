"""SPACE's own processes: their pid files, and replacing one by another.

`run/NAME.pid` holds a decimal pid (so that `kill $(cat …)` works); `run/NAME.json` beside it says which build it
runs and when the process started, against reuse of the pid.  Sandboxes never appear here.
"""

import contextlib
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFile:
    """What `run/NAME.json` holds."""

    pid: int
    start_time: int  #: field 22 of /proc/PID/stat
    root: str  #: where its source code lies
    build: str  #: fingerprint of that source code
    api_url: str
    log: str | None
    boot_id: str = ""  #: of the host; after a reboot another process may have the same pid and start time


def start_time_of(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it has gone or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def boot_id() -> str:
    """Return what names this run of the host's kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def build_fingerprint(root: Path) -> str:
    """Name the source code below `root`: another checkout or commit has another fingerprint."""
    digest = hashlib.sha256(str(root).encode())
    for path in sorted(root.rglob("*.py")):
        info = path.stat()
        digest.update(f"{path.relative_to(root)} {info.st_size} {info.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def read_process_file(run_dir: Path, name: str) -> ProcessFile | None:
    """Return the process that wrote `run/NAME.json`, if it still runs; it may be of another version."""
    known = {field.name for field in fields(ProcessFile)}
    try:
        content = json.loads((run_dir / f"{name}.json").read_text())
        found = ProcessFile(**{key: value for key, value in content.items() if key in known})
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return None
    if found.boot_id not in ("", boot_id()):
        return None
    return found if start_time_of(found.pid) == found.start_time else None


def write_process_file(run_dir: Path, name: str, *, root: Path, build: str, api_url: str, log: str | None) -> None:
    """Record this process; each file appears whole or not at all."""
    pid = os.getpid()
    start_time = start_time_of(pid)
    assert start_time is not None  # noqa: S101 - this process runs
    entry = ProcessFile(
        pid=pid, start_time=start_time, root=str(root), build=build, api_url=api_url, log=log, boot_id=boot_id()
    )
    for file, text in ((f"{name}.json", json.dumps(asdict(entry))), (f"{name}.pid", f"{pid}\n")):
        temporary = run_dir / f".{file}.{pid}"
        temporary.write_text(text)
        temporary.replace(run_dir / file)


def remove_process_file(run_dir: Path, name: str) -> None:
    """Forget a process that ended; succeeds if there is no file."""
    for suffix in ("pid", "json"):
        (run_dir / f"{name}.{suffix}").unlink(missing_ok=True)


def stop_process(entry: ProcessFile, *, grace: float = 10, waiting: Callable[[], None] = lambda: None) -> bool:
    """End one of SPACE's own processes: SIGTERM, then SIGKILL after `grace` seconds; return whether it has gone."""
    try:
        pidfd = os.pidfd_open(entry.pid)  # before the look at its start time: from here on no other process is meant
    except ProcessLookupError:
        return True
    try:
        for number, limit in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
            if start_time_of(entry.pid) != entry.start_time:
                return True
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)
            deadline = time.monotonic() + limit
            while time.monotonic() < deadline:
                if start_time_of(entry.pid) != entry.start_time:
                    return True
                waiting()
                time.sleep(0.02)
        return False
    finally:
        os.close(pidfd)


def detach(argv: list[str], *, env: dict[str, str], log: Path, ready: int) -> int:
    """Start `argv` in a session of its own, its output appended to `log` (0600); return its pid.

    The descriptor `ready` becomes the child's descriptor 3.  The child outlives this process: do not wait for it.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.posix_spawn(
            argv[0],
            argv,
            env,
            setsid=True,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, null, 0),
                (os.POSIX_SPAWN_DUP2, descriptor, 1),
                (os.POSIX_SPAWN_DUP2, descriptor, 2),
                (os.POSIX_SPAWN_DUP2, ready, 3),
            ],
        )
    finally:
        os.close(descriptor)
        os.close(null)

"""`space up --detach` and `space down`: the server as a process of its own."""

import json
import os
import sys
import time
from pathlib import Path

from space.app import data_dir
from space.app.own_process import NAME, SOURCE_ROOT, first_password
from space.config import Settings
from space.core.errors import SpaceError
from space.host.daemon import (
    build_fingerprint,
    detach,
    read_process_file,
    remove_process_file,
    start_time_of,
    stop_process,
)
from space.storage.sql.revision import check_file

READY_SECONDS = 60
MAX_LOG_BYTES = 16 << 20  #: a longer log is put aside, replacing the one before, when a server starts
TAIL_BYTES = 64 << 10


def start_detached(settings: Settings) -> int:
    """Make sure that a server of this very code runs on the data directory; return an exit code.

    One that runs already is left alone; one of another checkout or commit is replaced, its sandboxes stay.
    """
    if os.geteuid() != 0:
        return _fail("must run as root: it makes network namespaces and mounts; try sudo")
    try:
        data_dir.prepare(settings.data_dir)
        check_file(settings.data_dir / "space.db")
    except SpaceError as error:
        return _fail(error.message)
    found = read_process_file(settings.data_dir / "run", NAME)
    if found is not None:
        if found.build == build_fingerprint(SOURCE_ROOT):
            print(f"  SPACE already runs at {found.api_url} (process {found.pid}).")
            return 0
        print(f"  Replacing the server of {found.root} (process {found.pid}); its sandboxes stay …")
        if not stop_process(found):
            return _fail(f"process {found.pid} does not end, not even by SIGKILL; reboot the machine")
    return _start(settings)


def stop(settings: Settings) -> int:
    """End the server; its sandboxes run on and are found again by the next one."""
    run_dir = settings.data_dir / "run"
    found = read_process_file(run_dir, NAME)
    if found is None:
        print("  No server runs.")
        return 0
    if not stop_process(found):
        return _fail(f"process {found.pid} does not end, not even by SIGKILL; reboot the machine", command="down")
    remove_process_file(run_dir, NAME)
    print(f"  Stopped the server (process {found.pid}).")
    return 0


def _start(settings: Settings) -> int:
    log = settings.data_dir / "log" / "up.log"
    _put_long_log_aside(log)
    reading, writing = os.pipe()
    environment = {**os.environ, "SPACE_READY_FD": "3", "SPACE_LOG_FORMAT": "json"}
    try:
        pid = detach([sys.executable, "-m", "space", "up"], env=environment, log=log, ready=writing)
    finally:
        os.close(writing)
    message = _wait_for_message(reading, pid)
    if message is None and start_time_of(pid) is not None:
        return _fail(f"the server (process {pid}) still does not serve after {READY_SECONDS} s; its log is {log}")
    if message is None:
        return _fail(f"the server did not start; the end of its log, {log}:\n{_tail(log)}")
    answer = json.loads(message)
    print(f"  SPACE runs at {answer['api_url']} (process {pid}); its log is {log}.")
    if answer["admin_password"] is not None:
        print(first_password(answer["admin_email"], answer["admin_password"]))
    return 0


def _wait_for_message(reading: int, pid: int) -> str | None:
    """Return what the server says once it serves; None if it ended or stayed silent."""
    os.set_blocking(reading, False)
    said = started = time.monotonic()
    received = b""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while time.monotonic() - started < READY_SECONDS:
            chunk = pipe.read(65536)
            if chunk == b"":  # closed: the message is whole, or the server ended without one
                return received.decode() or None
            if chunk is not None:
                received += chunk
                continue
            if start_time_of(pid) is None:
                return received.decode() or None
            if time.monotonic() - said > 1:
                said = time.monotonic()
                print("  Starting the server …", flush=True)
            time.sleep(0.01)
    return None


def _put_long_log_aside(log: Path) -> None:
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        log.replace(log.with_name(f"{log.name}.1"))


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()[-15:]
    return "\n".join(f"    {line[:400]}" for line in lines)


def _fail(message: str, *, command: str = "up") -> int:
    print(f"space {command}: {message}", file=sys.stderr)
    return 1

"""The processes of the machine: pipes, terminals, stdin, timeouts and ends."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable

from space_guest.loop import Loop, Timer
from space_guest.output import Budget
from space_guest.pipes import Reader, Writer, open_terminal
from space_guest.process import Ended, Process, SpawnFailed
from space_guest.protocol import PTY, STDERR, STDOUT
from space_guest.request import Refused
from space_guest.spawners import Spawners, close_all
from space_guest.users import NoSuchUser, User, Users

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs 5 ms at start
    from typing import Any, TypeGuard

MAX_PROCESSES = 4096
GRACE_SECONDS = 0.05
IS_GVISOR = "Jan 10 15:06:54 PST 2016" in os.uname().version  #: the build date that it gives to every program
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Processes:
    """Every process that was started and not yet forgotten, by id."""

    def __init__(self, loop: Loop, users: Users, spawners: Spawners, *, default_user: str) -> None:
        self._loop = loop
        self._users = users
        self._spawners = spawners
        self.default_user = default_user
        self.env: dict[str, str] = {}  #: below each command's own
        self._budget = Budget()
        self._running: dict[str, RunningProcess] = {}

    def prepare(self) -> None:
        """Have the spawner of the default user ready before the first command."""
        with contextlib.suppress(NoSuchUser, SpawnFailed):
            self._spawners.of(self._users.find(self.default_user))

    def prewarm(self, done: Callable[[], None]) -> None:
        """Run a shell as the default user and call `done`: the first command then meets warm caches and no fork."""
        try:
            user = self._users.find(self.default_user)
            null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            fds = (null, os.dup(null))
            env = {b"PATH": DEFAULT_PATH.encode()}
            spawner = self._spawners.of(user)
            spawner.spawn(_Rehearsal(done), [b"sh", b"-c", b":"], env, [b"/"], fds, is_terminal=False)
        except (NoSuchUser, SpawnFailed, OSError):
            done()

    def disown(self) -> None:
        """Let every process run on, but as nobody's: its output is dropped and its end reported to no one."""
        running, self._running = self._running, {}
        for each in running.values():
            each.disown()

    def find(self, process_id: str) -> Process | None:
        found = self._running.get(process_id)
        return found.process if found else None

    def spawn(self, process_id: str, args: dict[str, Any]) -> Process:
        """Start a process; what it needs was checked by the node, so a wrong type here is `invalid_request`."""
        if len(self._running) >= MAX_PROCESSES:
            raise Refused("rate_limited", "too many processes are kept; forget some that have ended")
        try:
            order = _Order(args)
            user = self._users.find(order.user or self.default_user)
            process = Process(process_id, pty=order.pty is not None, stdin=order.stdin, budget=self._budget)
            running = RunningProcess(self, process, order)
            self._running[process_id] = running
            running.start(user)
        except NoSuchUser as error:
            raise Refused("spawn_failed", f"there is no user {error}", exit_code=126) from None
        except SpawnFailed as failed:
            self._running.pop(process_id, None)
            raise Refused("spawn_failed", failed.message, exit_code=failed.exit_code) from None
        return process

    def signal(self, process_id: str, name: object) -> None:
        number = signal.Signals.__members__.get(name) if isinstance(name, str) else None
        if number is None:
            raise Refused("invalid_request", "there is no such signal")
        self._get(process_id).signal(number)

    def resize(self, process_id: str, cols: object, rows: object) -> None:
        if not _is_size(cols) or not _is_size(rows):
            raise Refused("invalid_request", "a terminal has 1 to 65535 columns and rows")
        self._get(process_id).resize(cols, rows)

    def forget(self, process_id: str) -> None:
        """Drop an ended process; succeeds if it is not known."""
        running = self._running.get(process_id)
        if running is None:
            return
        process = running.process
        if process.ended is None:
            raise Refused("failed_precondition", "the process still runs")
        del self._running[process_id]
        drop(process)

    def describe(self) -> list[dict[str, Any]]:
        return [running.process.describe() for running in self._running.values()]

    def failed(self, process: Process, failure: SpawnFailed) -> None:
        """It never came to life: forget it, so that it may be tried again."""
        self._running.pop(process.id, None)
        if process.connection is not None:
            process.connection.process_failed(process, failure.exit_code, failure.message)

    def _get(self, process_id: str) -> RunningProcess:
        found = self._running.get(process_id)
        if found is None:
            raise Refused("not_found", "there is no such process")
        return found

    @property
    def loop(self) -> Loop:
        return self._loop

    @property
    def spawners(self) -> Spawners:
        return self._spawners


class _Rehearsal:
    """The order of a process of which nobody wants to know more than that it is over."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done

    def started(self, os_pid: int) -> None: ...

    def failed(self, failure: SpawnFailed) -> None:
        self._done()

    def exited(self, status: int | None) -> None:
        self._done()


class _Order:
    """The validated arguments of `spawn`."""

    def __init__(self, args: dict[str, Any]) -> None:
        argv, env, pty = args.get("argv"), args.get("env", {}), args.get("pty")
        if not isinstance(argv, list) or not argv or not all(isinstance(item, str) for item in argv):
            raise Refused("invalid_request", "argv is a list of strings")
        if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
            raise Refused("invalid_request", "env maps strings to strings")
        if pty is not None and not (isinstance(pty, list) and len(pty) == 2 and all(map(_is_size, pty))):
            raise Refused("invalid_request", "pty is [columns, rows]")
        timeout = args.get("timeout", 0)
        if type(timeout) not in (int, float) or not 0 <= timeout < 1e9:
            raise Refused("invalid_request", "timeout is a number of seconds")
        self.argv: list[str] = argv
        self.env: dict[str, str] = env
        self.pty: list[int] | None = pty
        self.timeout: float = timeout
        self.stdin = args.get("stdin") is True
        self.cwd, self.user = _text(args, "cwd"), _text(args, "user")
        if any("\0" in text for text in (*argv, *env, *env.values(), self.cwd or "", self.user or "")):
            raise Refused("invalid_request", "a NUL byte cannot be passed to a program")
        if any("=" in name or not name for name in env):
            raise Refused("invalid_request", "the name of an environment variable has no =")


class RunningProcess:
    """One process with its descriptors; the spawner tells it what became of it."""

    def __init__(self, owner: Processes, process: Process, order: _Order) -> None:
        self.process = process
        self._owner = owner
        self._loop = owner.loop
        self._order = order
        self._readers: dict[int, Reader] = {}
        self._writer: Writer | None = None
        self._status: int | None = None
        self._is_over = False
        self._is_disowned = False
        self._reason: str | None = None
        self._signalled: set[int] = set()
        self._deadline: Timer | None = None
        self._patience: Timer | None = None
        self._is_patient = True

    def start(self, user: User) -> None:
        order = self._order
        env = {
            "PATH": DEFAULT_PATH,
            "HOME": user.home,
            "USER": user.name,
            "LOGNAME": user.name,
            "SHELL": user.shell,
            **({"TERM": "xterm-256color"} if order.pty else {}),
            **self._owner.env,
            **order.env,
        }
        cwd = [order.cwd] if order.cwd else [user.home, "/"]
        spawner = self._owner.spawners.of(user)
        theirs = self._open_terminal(user, order.pty) if order.pty else self._open_pipes()
        try:
            spawner.spawn(
                self,
                [item.encode("utf-8", "surrogateescape") for item in order.argv],
                {name.encode(): value.encode("utf-8", "surrogateescape") for name, value in env.items()},
                [item.encode("utf-8", "surrogateescape") for item in cwd],
                theirs,
                is_terminal=order.pty is not None,
            )
        except SpawnFailed:
            self._close()
            raise

    def _open_pipes(self) -> tuple[int, ...]:
        theirs: list[int] = []
        try:
            for number in (STDOUT, STDERR):
                reader, writer = os.pipe()
                theirs.append(writer)
                self._readers[number] = Reader(self._loop, reader, self.process, number, self._advance)
            if self._order.stdin:
                reader, writer = os.pipe()
                theirs.append(reader)
                self._writer = Writer(self._loop, writer, self.process)
        except OSError as error:
            close_all(tuple(theirs))
            self._close()
            raise SpawnFailed(126, f"no descriptors are left: {os.strerror(error.errno or errno.EMFILE)}") from None
        return tuple(theirs)

    def _open_terminal(self, user: User, size: list[int]) -> tuple[int, ...]:
        try:
            master, theirs = open_terminal(user.uid, size)
        except OSError as error:
            raise SpawnFailed(126, f"no terminal is left: {os.strerror(error.errno or errno.EMFILE)}") from None
        self._readers[PTY] = Reader(self._loop, master, self.process, PTY, self._advance)
        self._writer = Writer(self._loop, os.dup(master), self.process, is_terminal=True)
        return (theirs,)

    # What the spawner tells

    def started(self, os_pid: int) -> None:
        self.process.started(os_pid)
        if self._order.timeout:
            self._deadline = self._loop.call_later(self._order.timeout, self._time_out)
        for reader in self._readers.values():
            reader.resume()

    def disown(self) -> None:
        """Have its output read and dropped; what it has on stdin stays open, since its end might end the process."""
        drop(self.process)
        for reader in self._readers.values():
            reader.discard()
        self._is_disowned = True
        if self._is_over:
            self._abandon()

    def _abandon(self) -> None:
        for timer in (self._deadline, self._patience):
            if timer is not None:
                timer.cancel()
        if self._writer is not None:
            self._writer.close()
        if PTY in self._readers:
            self._readers[PTY].close()

    def failed(self, failure: SpawnFailed) -> None:
        self._close()
        self._owner.failed(self.process, failure)

    def exited(self, status: int | None) -> None:
        """Take what the process has left in its pipes, then tell its end.

        All that it wrote lies in the pipes by now.  A child of it that still holds them may write on for ever, so
        beyond those bytes there is only a short grace for end of file.
        """
        self._status, self._is_over = status, True
        if self._is_disowned:
            self._abandon()
            return
        if self._deadline is not None:
            self._deadline.cancel()
        if self._writer is not None:
            self._writer.close()
        for reader in list(self._readers.values()):
            reader.expect_rest()
        if self._readers:
            self._patience = self._loop.call_later(GRACE_SECONDS, self._lose_patience)
        self._advance()

    def _lose_patience(self) -> None:
        self._is_patient = False
        self._advance()

    def _advance(self) -> None:
        """Finish once every stream has ended, or has given what was owed and the grace is over."""
        if not self._is_over or self._is_disowned or self.process.ended is not None:
            return
        for reader in self._readers.values():
            if not (reader.is_closed or (reader.owed <= 0 and not self._is_patient)):
                return
        for reader in self._readers.values():
            reader.discard()
        if PTY in self._readers:
            self._readers[PTY].close()
        if self._patience is not None:
            self._patience.cancel()  # or the agent would wake for nothing
        self.process.finish(self._ended())

    def _ended(self) -> Ended:
        status = self._status
        if status is None:
            return Ended(None, None, "lost")
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            reason = self._reason or ("killed" if number in self._signalled else None)
            return Ended(None, _signal_name(number), reason)
        return Ended(os.WEXITSTATUS(status), None, self._reason)

    # What the node wants

    def signal(self, number: int) -> None:
        if self._is_over:
            return
        if self.process.os_pid is None:
            raise Refused("failed_precondition", "the process has not started yet")
        self._signalled.add(number)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.os_pid, number)

    def resize(self, cols: int, rows: int) -> None:
        if PTY not in self._readers or self._writer is None:
            raise Refused("failed_precondition", "the process has no terminal")
        self._writer.resize(cols, rows)
        if IS_GVISOR and not self._is_over and self.process.os_pid is not None:
            # It keeps the size but tells nobody (runsc 20240729).
            with contextlib.suppress(OSError):
                os.killpg(self._writer.foreground_group() or self.process.os_pid, signal.SIGWINCH)

    def _time_out(self) -> None:
        self._reason = "timeout"
        self.signal(signal.SIGKILL)

    def _close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        if self._writer is not None:
            self._writer.close()


def drop(process: Process) -> None:
    """Let go of a process that nobody will ask for any more."""
    if process.connection is not None:
        process.connection.release(process)
    for stream in process.streams.values():
        stream.discard()


def _text(args: dict[str, Any], name: str) -> str | None:
    value = args.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused("invalid_request", f"{name} is a string")
    return value or None


def _is_size(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 < value < 65536


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"

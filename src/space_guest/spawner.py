"""Processes that start others: one small one a user, forked from a zygote that was forked before any thread existed.

Starting a process as another user needs a fork of the starter, since vfork and setuid do not go together; of a Python
agent that costs 37-43 ms under gVisor against 9-11 ms for `posix_spawn`.  A spawner is that user already, so it changes
directory and calls `posix_spawn`.  It also waits for what it started.  A user may kill or stop its own spawner: the
agent then makes another, and as first process of the machine inherits and reaps the orphans.

    agent → zygote   marshal of (uid, gid, groups, process limit), and a socket
    agent → spawner  length u32, marshal of (key, argv, env, directories to try, number of descriptors, is terminal),
                     and stdout, stderr[, stdin], or the terminal
    spawner → agent  what u8, key u32, value i32, errno i32: nothing else, since the user may control the spawner
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import select
import signal
import socket
import sys
from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs 5 ms at start
    from typing import Any, NoReturn

LENGTH = Struct("!I")
EVENT = Struct("!BIii")
_INT = Struct("i")
STARTED, FAILED, EXITED = 1, 2, 3
NOT_FOUND, NOT_EXECUTABLE, BAD_DIRECTORY = 127, 126, 125  #: `value` of FAILED
MAX_FDS = 64
HOLD_MS = 10
_scratch = memoryview(bytearray(262144))  #: a new buffer for each order would be mapped and unmapped each time
#: all that can be named: for each of the others `posix_spawn` asks first, and a system call costs 10 µs under gVisor
_SIGNALS = [number for number in range(1, 65) if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33)]


def start_zygote() -> tuple[int, socket.socket]:
    """Fork the zygote; return its pid and the socket to ask it for spawners."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    ours.close()
    _leave(_zygote, theirs)


def _leave(run: Any, *args: Any) -> NoReturn:
    code = 1
    try:
        run(*args)
        code = 0
    except BaseException:
        with contextlib.suppress(BaseException):
            import traceback

            traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(code)


def _zygote(requests: socket.socket) -> None:
    os.closerange(3, requests.fileno())
    os.closerange(requests.fileno() + 1, 1 << 20)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.umask(0o022)
    while True:
        data, fds = _receive(requests, 1)
        if not data:
            return
        pid = os.fork()
        if not pid:
            requests.close()
            _leave(_become, marshal.loads(data), socket.socket(fileno=fds[0]))  # noqa: S302 - from the agent itself
        for fd in fds:
            os.close(fd)


def _receive(requests: socket.socket, count: int) -> tuple[bytes, list[int]]:
    """Receive bytes and descriptors that children do not inherit; `socket.recv_fds` ignores its flags."""
    size, ancillary, _, _ = requests.recvmsg_into(
        [_scratch], socket.CMSG_LEN(count * _INT.size), socket.MSG_CMSG_CLOEXEC
    )
    fds: list[int] = []
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = content[: len(content) - len(content) % _INT.size]
            fds += [fd for (fd,) in _INT.iter_unpack(whole)]
    return bytes(_scratch[:size]), fds


def _become(identity: tuple[int, int, list[int], int], requests: socket.socket) -> None:
    uid, gid, groups, max_processes = identity
    _limit(uid, max_processes)
    if os.getuid() == 0:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the agent has gone, or has given this one up
        Spawner(requests).run()


def _limit(uid: int, max_processes: int) -> None:
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if uid != 0 and max_processes:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NPROC, (max_processes, max_processes))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # guests go before the agent; not every kernel has it


class Spawner:
    """Runs as one user: starts what the agent asks for, tells what became of it."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._keys: dict[int, int] = {}
        self._buffer = bytearray()
        self._fds: list[int] = []
        self._untold = b""
        _provide_stdin()

    def run(self) -> None:
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._requests, select.POLLIN)
        poll.register(woken, select.POLLIN)
        while True:
            ready = poll.poll(HOLD_MS if self._untold else None)
            for fd, _ in ready:
                if fd != woken:
                    if not self._receive():
                        return
                else:
                    with contextlib.suppress(BlockingIOError):
                        os.read(woken, 4096)
            if self._reap() or not ready:
                self._flush()

    def _receive(self) -> bool:
        data, fds = _receive(self._requests, MAX_FDS)
        if not data:
            return False
        self._buffer += data
        self._fds += fds
        while len(self._buffer) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                break
            order = marshal.loads(self._buffer[LENGTH.size : end])  # noqa: S302 - from the agent itself
            del self._buffer[:end]
            self._order(*order)
        return True

    def _order(
        self, key: int, argv: list[bytes], env: dict[bytes, bytes], cwd: list[bytes], count: int, tty: bool
    ) -> None:
        fds, self._fds = self._fds[:count], self._fds[count:]
        try:
            event = STARTED, key, self._start(argv, env, cwd, fds, tty), 0
        except _Failed as failed:
            event = FAILED, key, failed.value, failed.errno
        else:
            self._keys[event[2]] = key
        for fd in fds:  # before it is told: else a pipe that the process has closed still has a reader
            os.close(fd)
        self._flush()  # of the order before
        self._tell(*event)
        if event[0] == FAILED:
            self._flush()

    def _start(self, argv: list[bytes], env: dict[bytes, bytes], cwd: list[bytes], fds: list[int], tty: bool) -> int:
        self._change_directory(cwd)
        program = find_program(argv[0], env.get(b"PATH", b""))
        start = self._fork_on_terminal if tty else self._posix_spawn
        try:
            try:
                return start(program, argv, env, fds)
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
                return start(b"/bin/sh", [b"sh", program, *argv[1:]], env, fds)  # as execvp(3) does
        except OSError as error:
            raise _Failed(NOT_EXECUTABLE, error) from None

    @staticmethod
    def _change_directory(cwd: list[bytes]) -> None:
        """Go to the first of these that there is."""
        failure: OSError | None = None
        for path in cwd:
            try:
                os.chdir(path)
                return
            except OSError as error:
                failure = failure or error
        raise _Failed(BAD_DIRECTORY, failure or OSError(errno.ENOENT, ""))

    def _posix_spawn(self, program: bytes, argv: list[bytes], env: dict[bytes, bytes], fds: list[int]) -> int:
        # Without a pipe it inherits 0 from here: /dev/null.
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for fd, number in zip(fds, (1, 2, 0), strict=False)]
        return os.posix_spawn(program, argv, env, file_actions=actions, setsid=True, setsigmask=[], setsigdef=_SIGNALS)

    def _fork_on_terminal(self, program: bytes, argv: list[bytes], env: dict[bytes, bytes], fds: list[int]) -> int:
        """Start it as leader of a session with the terminal: `posix_spawn` cannot, and terminals may take longer."""
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                signal.set_wakeup_fd(-1)
                for number in _SIGNALS:
                    signal.signal(number, signal.SIG_DFL)
                os.login_tty(fds[0])
                os.execve(program, argv, env)  # noqa: S606 - this is what a spawner is for
            except OSError as error:
                os.write(writer, LENGTH.pack(error.errno or errno.EIO))
            finally:
                os._exit(127)
        os.close(writer)
        failure = os.read(reader, LENGTH.size)
        os.close(reader)
        if failure:
            os.waitpid(pid, 0)
            raise OSError(LENGTH.unpack(failure)[0], "exec")
        return pid

    def _reap(self) -> bool:
        """Collect what has ended; whether there was anything."""
        has_any = False
        while self._keys:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            key = self._keys.pop(pid, None)
            if key is not None:
                self._tell(EXITED, key, status, 0)
                has_any = True
        return has_any

    def _tell(self, what: int, key: int, value: int, error: int) -> None:
        self._untold += EVENT.pack(what, key, value, error)

    def _flush(self) -> None:
        """Send what is to be told.

        A start is held back for some milliseconds, because a short program ends within them: telling both at once
        leaves the two of us, and everybody up to the client, asleep while it runs (`true`: 3 ms of 25 on two cores).
        """
        untold, self._untold = self._untold, b""
        if untold:
            self._requests.sendall(untold)


def _provide_stdin() -> None:
    """Put something that is at its end on descriptor 0, for children that get no pipe."""
    try:
        null = os.open("/dev/null", os.O_RDWR)
    except OSError:  # a rootfs without /dev
        null, writer = os.pipe()
        os.close(writer)
    if null:
        os.dup2(null, 0)
        os.close(null)
    else:  # it was closed
        os.set_inheritable(0, True)


class _Failed(Exception):
    def __init__(self, value: int, error: OSError) -> None:
        self.value = value
        self.errno = error.errno or errno.EIO


def find_program(name: bytes, path: bytes) -> bytes:
    """Return the file that a shell would run for `name`; raises `_Failed`."""
    denied = False
    candidates = (
        [name] if b"/" in name else [folder.rstrip(b"/") + b"/" + name for folder in path.split(b":") if folder]
    )
    for candidate in candidates:
        try:
            mode = os.stat(candidate).st_mode
        except PermissionError:
            denied = True
            continue
        except OSError:
            continue
        if mode & 0o170000 == 0o100000 and os.access(candidate, os.X_OK):
            return candidate
        denied = True
    if denied:
        raise _Failed(NOT_EXECUTABLE, OSError(errno.EACCES, ""))
    raise _Failed(NOT_FOUND, OSError(errno.ENOENT, ""))

"""Starting processes: the one place that does, with everything explicit.

Never a shell; the environment, working directory and descriptors of a child are what the caller names and nothing
else.  A child may be born in another network namespace, in cgroups, and with a mount namespace of its own: a
short-lived thread enters them and then starts it, because Python's `vfork` gives a child the namespaces and (v1)
cgroups of the *thread* that called it.  That costs a tenth of a millisecond where `unshare`, `sh` and `exec` cost
several, and is safe in a threaded server where `preexec_fn` is not.
"""

import asyncio
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from space.core.errors import SpaceError
from space.host import linux
from space.host.daemon import start_time_of
from space.host.readiness import readable
from space.host.reaper import owned

Result = TypeVar("Result")

#: What a system tool gets unless the caller says otherwise.
PLAIN_ENV: Mapping[str, str] = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
STDERR_LINES = 50
MAX_LINE = 2000


class ProcessFailed(SpaceError):
    """A program ended with another status than 0, or not in time; `stderr` is what it said at the end."""

    def __init__(self, argv: Sequence[str], returncode: int | None, stderr: str) -> None:
        self.returncode = returncode
        self.stderr = stderr
        how = "did not end in time" if returncode is None else f"ended with {returncode}"
        super().__init__(f"{Path(argv[0]).name} {how}: {stderr.strip()[-500:] or 'it said nothing'}")


@dataclass(frozen=True, slots=True)
class Completed:
    """A program that ended."""

    returncode: int
    stdout: bytes
    stderr: bytes


def process_is(pid: int, start_time: int) -> bool:
    """Whether `pid` is still the process that started then, and lives."""
    return start_time_of(pid) == start_time


def in_thread(body: Callable[[], Result]) -> Result:
    """Run `body` in a thread that ends with it, so that namespaces which it enters are never seen again."""
    box: list[Result] = []
    failure: list[BaseException] = []

    def target() -> None:
        try:
            box.append(body())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=target, name="space-spawn")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return box[0]


def restrict_children(hidden: Sequence[str], read_only: Sequence[Path]) -> None:
    """Give the calling thread a mount namespace: `hidden` are empty directories in it, `read_only` cannot be changed.

    Mounts and unmounts of the host still reach it ("slave"); none of its own ever reach the host.
    """
    linux.unshare(linux.CLONE_FS | linux.CLONE_NEWNS)
    linux.mount("", "/", flags=linux.MS_REC | linux.MS_SLAVE)
    for path in hidden:
        linux.mount("none", path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC, "size=4k")
    for directory in read_only:
        linux.mount(str(directory), directory, flags=linux.MS_BIND)
        flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
        linux.mount("", directory, flags=flags)


def popen(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str = "/",
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    netns: str | None = None,
    cgroup_tasks: Sequence[Path] = (),
    pass_fds: Sequence[int] = (),
    hidden: Sequence[str] | None = None,
    read_only: Sequence[Path] = (),
    new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program; blocks until it has been executed (about a millisecond).

    `hidden` gives it a mount namespace of its own in which these directories are empty, `read_only` one in which those
    cannot be changed.  `cgroup_tasks` are `tasks`
    files (v1) that the starting thread joins before the program exists.
    """

    def start() -> subprocess.Popen[bytes]:
        for tasks in cgroup_tasks:
            tasks.write_text(str(threading.get_native_id()))
        if netns is not None:
            with Path("/run/netns", netns).open() as namespace:
                linux.setns(namespace.fileno(), linux.CLONE_NEWNET)
        if hidden is not None or read_only:
            restrict_children(hidden or (), read_only)
        with owned.registering() as register:
            child = subprocess.Popen(
                list(argv),
                env=dict(PLAIN_ENV if env is None else env),
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=pass_fds,
                close_fds=True,
                start_new_session=new_session,
            )
            register(child.pid)
            return child

    is_apart = netns is not None or hidden is not None or read_only or cgroup_tasks
    return in_thread(start) if is_apart else start()


async def pidfd_exited(descriptor: int) -> None:
    """Return once the process behind a pidfd has ended; the caller keeps the descriptor."""
    # A duplicate, because a loop knows one reader a descriptor and several tasks may wait for one process.
    watched = os.dup(descriptor)
    try:
        await readable(watched)
    finally:
        os.close(watched)


class Process:
    """A child of ours.  Whoever made it awaits `wait` or `stop`; its exit status is collected once."""

    def __init__(self, child: "subprocess.Popen[bytes]", argv: Sequence[str]) -> None:
        self.argv = tuple(argv)
        self.pid = child.pid
        self.start_time = start_time_of(child.pid)
        self._child = child
        self._pidfd = os.pidfd_open(child.pid)
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._reader = threading.Thread(target=self._read_stderr, daemon=True) if child.stderr else None
        if self._reader:
            self._reader.start()

    def _read_stderr(self) -> None:
        assert self._child.stderr is not None  # noqa: S101
        with self._child.stderr as stream:
            while line := stream.readline(MAX_LINE):
                self._stderr.append(line.decode(errors="replace").rstrip("\n"))

    @property
    def stdin(self) -> IO[bytes] | None:
        return self._child.stdin

    @property
    def stdout(self) -> IO[bytes] | None:
        return self._child.stdout

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._child.returncode

    @property
    def stderr_tail(self) -> str:
        """The last lines that it wrote to stderr, of which only so many are kept."""
        return "\n".join(self._stderr)

    async def wait(self) -> int:
        """Return its status once it has ended; several tasks may wait."""
        if self._child.returncode is None:
            await pidfd_exited(self._pidfd)
            self._collect()
        return int(self._child.returncode or 0)

    def _collect(self) -> None:
        if self._child.returncode is None:
            self._child.wait()
            owned.discard(self.pid)
            os.close(self._pidfd)
            if self._reader:
                self._reader.join(1.0)

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens once it has ended."""
        if self._child.returncode is None:
            signal.pidfd_send_signal(self._pidfd, number)

    async def stop(self, *, grace: float = 5.0) -> int:
        """End it: SIGTERM, `grace` seconds, SIGKILL.  Idempotent."""
        if self._child.returncode is None and grace > 0:
            self.send_signal(signal.SIGTERM)
            try:
                return await asyncio.wait_for(self.wait(), grace)
            except TimeoutError:
                pass
        self.send_signal(signal.SIGKILL)
        return await self.wait()


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str = "/",
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.PIPE,
    netns: str | None = None,
    pass_fds: Sequence[int] = (),
    hidden: Sequence[str] | None = None,
    read_only: Sequence[Path] = (),
    new_session: bool = False,
) -> Process:
    """Start a program that this process owns; the caller awaits `wait` or `stop`.  See `popen` for the rest."""
    child = popen(
        argv,
        env=env,
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        netns=netns,
        pass_fds=pass_fds,
        hidden=hidden,
        read_only=read_only,
        new_session=new_session,
    )
    return Process(child, argv)


async def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str = "/",
    stdin: bytes = b"",
    timeout: float = 30.0,
    check: bool = True,
    max_output: int = 16 << 20,
    netns: str | None = None,
    pass_fds: Sequence[int] = (),
    hidden: Sequence[str] | None = None,
    read_only: Sequence[Path] = (),
) -> Completed:
    """Run a program to its end and return what it wrote, of each stream at most `max_output` bytes.

    Cancelled or out of time, it is killed before this returns.

    Raises:
        ProcessFailed: with `check`, it ended with another status than 0; or it did not end in `timeout` seconds.
        FileNotFoundError: there is no such program.
    """
    with memory_file(stdin) as source, memory_file() as output, memory_file() as errors:
        process = spawn(
            argv,
            env=env,
            cwd=cwd,
            stdin=source,
            stdout=output,
            stderr=errors,
            netns=netns,
            pass_fds=pass_fds,
            hidden=hidden,
            read_only=read_only,
        )
        try:
            await asyncio.wait_for(process.wait(), timeout)
        except TimeoutError:
            await process.stop(grace=0)
            raise ProcessFailed(argv, None, _read(errors, max_output).decode(errors="replace")) from None
        except asyncio.CancelledError:
            await asyncio.shield(process.stop(grace=0))
            raise
        completed = Completed(process.returncode or 0, _read(output, max_output), _read(errors, max_output))
    if check and completed.returncode != 0:
        raise ProcessFailed(argv, completed.returncode, completed.stderr.decode(errors="replace"))
    return completed


@contextmanager
def memory_file(content: bytes = b"") -> Iterator[int]:
    """Make an anonymous file, read from its beginning: no pipe to drain, nothing on disk."""
    descriptor = os.memfd_create("space", os.MFD_CLOEXEC)
    try:
        if content:
            os.write(descriptor, content)
            os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _read(descriptor: int, limit: int) -> bytes:
    return os.pread(descriptor, limit, 0)

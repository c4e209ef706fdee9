"""A process of a fake guest: a program that runs as a task, and can be saved.

A task cannot be written down, but the programs are deterministic, so what made it so far can be: its arguments, all
of its stdin, how long it has slept and how much it has put out.  A restored process runs its program from the
beginning with the same stdin, sleeps only for what is left, and is silent until it reaches what it had said.  A `cat`
of a file that changed meanwhile is the one thing that can differ.
"""

import asyncio
import base64
import signal
from collections.abc import Mapping
from typing import Any

from space.core.errors import FailedPrecondition
from space.testing.guest_files import MemoryFiles
from space.testing.guest_programs import Naps, Program, ProgramIo
from space_guest.output import Budget, OutputStream
from space_guest.process import Ended, Process
from space_guest.request import Refused

MAX_SAVED_STDIN = 4 * 1024 * 1024
_HARMLESS = frozenset({"SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH", "SIGSTOP", "SIGTSTP"})


class FakeProcess:
    """One process; `run` is its task."""

    def __init__(
        self,
        process_id: str,
        args: Mapping[str, Any],
        program: Program,
        *,
        os_pid: int,
        cwd: str,
        env: Mapping[str, str],
        files: MemoryFiles,
        budget: Budget,
    ) -> None:
        is_terminal = args.get("pty") is not None
        self.process = Process(process_id, pty=is_terminal, stdin=args.get("stdin") is True, budget=budget)
        self.os_pid = os_pid
        self._args = dict(args)
        self._env = dict(env)
        self._cwd = cwd
        self._program = program
        self._timeout = args.get("timeout") or None
        self._task: asyncio.Task[int] | None = None
        self._ended: Ended | None = None
        self._is_disowned = False
        self._room = asyncio.Event()
        self.process.on_room = self._has_room
        user = args.get("user") or "user"
        whole = {"HOME": "/home/user", "USER": user, "PATH": "/usr/bin:/bin", "PWD": cwd, **env, **args["env"]}
        self._naps = Naps()
        self._io = ProgramIo(args["argv"], whole, cwd, files, self._write, is_terminal=is_terminal, naps=self._naps)
        self._stdin: list[bytes] = []
        self._said = dict.fromkeys(self.process.streams, 0)  #: bytes put out by an earlier run of the program
        self.process.on_stdin = self._take
        self.process.on_stdin_end = self._io.end_stdin
        if not self.process.is_stdin_open:
            self._io.end_stdin()

    async def run(self) -> None:
        """Run the program to its end."""
        if self.process.ended is not None:
            return
        if self.process.os_pid is None:
            await asyncio.sleep(0)  # as a real one, it starts after the request was taken
            self.process.started(self.os_pid)
        self._task = asyncio.ensure_future(self._program(self._io))
        try:
            async with asyncio.timeout(self._timeout):
                code = await self._task
            ended = Ended(code & 255)
        except TimeoutError:
            ended = Ended(None, "SIGKILL", "timeout")
        except asyncio.CancelledError:
            if self._ended is None:
                raise
            ended = self._ended
        self.process.finish(ended)

    def signal(self, name: str) -> None:
        if name not in signal.Signals.__members__:
            raise Refused("invalid_request", "there is no such signal")
        if self.process.ended is None and self._task is not None and name not in _HARMLESS:
            self._ended = Ended(None, name, "killed")
            self._task.cancel()

    def drop(self) -> None:
        """Nobody will ask for it any more: it runs on, and what it says is lost."""
        self._is_disowned = True
        if self.process.connection is not None:
            self.process.connection.release(self.process)
        for stream in self.process.streams.values():
            stream.discard()
        self._room.set()

    def _take(self, data: bytes) -> None:
        self._stdin.append(data)
        self._io.give_stdin(data, lambda: self.process.consumed(len(data)))

    async def _write(self, number: int, data: bytes) -> None:
        silent = min(len(data), self._said[number])
        self._said[number] -= silent
        view = memoryview(data)[silent:]
        stream = self.process.streams[number]
        while view and not self._is_disowned:
            while not stream.room and not self._is_disowned:
                self._room.clear()
                await self._room.wait()
            count = min(len(view), stream.room)
            self.process.append(number, bytes(view[:count]))
            view = view[count:]
            await asyncio.sleep(0)
        if self._is_disowned:
            await asyncio.sleep(0)

    def _has_room(self, stream: OutputStream) -> None:
        self._room.set()

    # Saved

    def save(self) -> dict[str, Any]:
        """Return all that `load` needs; raises `FailedPrecondition` if it was given too much to keep."""
        process = self.process
        if sum(map(len, self._stdin)) > MAX_SAVED_STDIN:
            raise FailedPrecondition(f"process {process.id} cannot be saved: it has read too much")
        ended = process.ended
        return {
            "id": process.id,
            "args": self._args,
            "os_pid": self.os_pid,
            "cwd": self._cwd,
            "env": self._env,
            "slept": self._naps.slept,
            "ended": ended and [ended.exit_code, ended.signal, ended.reason],
            "stdin": [base64.b64encode(data).decode() for data in self._stdin],
            "stdin_written": process.stdin_written,
            "is_stdin_open": process.is_stdin_open,
            "streams": {
                number: [stream.base, base64.b64encode(stream.kept).decode()]
                for number, stream in process.streams.items()
            },
        }

    @classmethod
    def load(cls, saved: Mapping[str, Any], program: Program, *, files: MemoryFiles, budget: Budget) -> "FakeProcess":
        """Return a process as it was saved, for `run` to go on."""
        found = cls(
            saved["id"],
            saved["args"],
            program,
            os_pid=saved["os_pid"],
            cwd=saved["cwd"],
            env=saved["env"],
            files=files,
            budget=budget,
        )
        process = found.process
        process.os_pid = found.os_pid
        process.stdin_written = saved["stdin_written"]
        found._naps.owed = saved["slept"]
        for number, (base, kept) in saved["streams"].items():
            stream = process.streams[int(number)]
            stream.base = stream.sent = base
            stream.append(base64.b64decode(kept))
            found._said[int(number)] = stream.end
        for data in map(base64.b64decode, saved["stdin"]):
            found._give_again(data)
        if process.is_stdin_open and not saved["is_stdin_open"]:
            process.is_stdin_open = False
            found._io.end_stdin()
        if saved["ended"]:
            process.finish(Ended(*saved["ended"]))
        return found

    def _give_again(self, data: bytes) -> None:
        """Give stdin to the program; what it had read before is not told again."""
        process = self.process
        start = process.stdin_received
        process.stdin_received += len(data)
        self._stdin.append(data)

        def taken() -> None:
            if start >= process.stdin_written:
                process.consumed(len(data))

        self._io.give_stdin(data, taken)

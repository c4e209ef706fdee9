"""A guest in memory: the agent's protocol over the agent's own code, with programs and files that touch no host.

    guest = FakeGuest(token="…")
    stream = await guest.connect()        # or give `guest.serve` to something that accepts connections

`FakeGuest.answer` is a guest factory for `FakeRuntime`.  Programs are those of `guest_programs`; whoever fuzzes the API
above it reaches nothing else.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from space.core.node import MachineSpec
from space.core.ports import ByteStream
from space.testing.guest_files import MemoryFiles, file_requests
from space.testing.guest_programs import PROGRAMS, Program, ProgramIo
from space.testing.runtime import memory_streams
from space_guest.connection import Connection
from space_guest.output import Budget, OutputStream
from space_guest.process import Ended, Process
from space_guest.protocol import PTY, ProtocolError
from space_guest.request import Refused, Request

memory_stream_pair = memory_streams
USERS = frozenset({"root", "user", "nobody"})
HIGH_WATER = 1024 * 1024
_HARMLESS = frozenset({"SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH", "SIGSTOP", "SIGTSTP"})


class FakeGuest:
    """One guest; it outlives its connections, as a machine does."""

    def __init__(self, *, token: str, default_user: str = "user") -> None:
        self.boot_id = os.urandom(16).hex()
        self.files = MemoryFiles(default_user)
        self.env: dict[str, str] = {}
        self._token = token
        self._default_user = default_user
        self._budget = Budget()
        self._processes: dict[str, _FakeProcess] = {}
        self._present: Connection | None = None
        self._tasks: set[asyncio.Future[None]] = set()
        self._requests = file_requests(self.files)
        self._pids = iter(range(2, 1 << 22))

    @classmethod
    def answer(cls, spec: MachineSpec) -> Callable[[int], Callable[[ByteStream], Awaitable[None]]]:
        """Make a guest for a machine of `FakeRuntime`; it listens on the agent's port only."""
        guest = cls(token=spec.token, default_user=spec.default_user)

        def listen(port: int) -> Callable[[ByteStream], Awaitable[None]]:
            if port != spec.agent_port:
                raise ConnectionRefusedError(f"nothing listens on port {port}")
            return guest.serve

        return listen

    async def connect(self) -> ByteStream:
        """Return the node's end of a new connection."""
        near, far = memory_streams()
        self.own(self.serve(far))
        return near

    async def serve(self, stream: ByteStream) -> None:
        """Serve one connection until its stream ends."""
        link = _Link()
        connection = Connection(link, self, self._token)
        link.connection = connection
        writer = asyncio.create_task(link.run(stream))
        try:
            while data := await stream.receive():
                connection.feed(data)
                if connection.is_lost:
                    break
        except (ProtocolError, OSError):
            pass  # the agent hangs up too
        finally:
            connection.lost()
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await writer
            await stream.aclose()

    async def aclose(self) -> None:
        """End every program and connection."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def own(self, work: Awaitable[None]) -> None:
        """Run `work` as long as this guest lives."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Services of a connection

    def authenticated(self, connection: Connection) -> None:
        previous, self._present = self._present, connection
        if previous is not None:
            previous.lost()

    def find(self, process_id: str) -> Process | None:
        found = self._processes.get(process_id)
        return found.process if found else None

    def spawn(self, process_id: str, args: dict[str, Any]) -> Process:
        if (args.get("user") or self._default_user) not in USERS and not str(args.get("user")).isdigit():
            raise Refused("spawn_failed", "there is no such user", exit_code=126)
        cwd = args.get("cwd") or "/home/user"
        if not self.files.is_directory(cwd):
            raise Refused("spawn_failed", "cannot change to the working directory", exit_code=126)
        name = str(args["argv"][0]).rpartition("/")[2]
        program = PROGRAMS.get(name)
        if program is None:
            raise Refused("spawn_failed", "there is no such program", exit_code=127)
        running = self._processes[process_id] = _FakeProcess(self, process_id, args, program, next(self._pids), cwd)
        self.own(running.run())
        return running.process

    def handle(self, op: str, request: Request) -> None:
        if op in self._requests:
            self.own(self._requests[op](request))
            return
        match op:
            case "ping" | "set_clock" | "add_entropy":
                request.reply({})
            case "stats":
                request.reply({"cpu_seconds": 1.5, "memory_bytes": 32 << 20, "pids": 1 + len(self._processes)})
            case "processes":
                request.reply({"processes": [running.process.describe() for running in self._processes.values()]})
            case "personalise":
                self.env = request.args.get("env") or self.env
                self._token = request.args.get("token") or self._token
                self.boot_id = os.urandom(16).hex()
                request.reply({"boot_id": self.boot_id})
            case "signal" | "resize" | "forget":
                self._tell(op, request)
            case _:
                raise Refused("unsupported", "this agent does not know the request")

    def _tell(self, op: str, request: Request) -> None:
        running = self._processes.get(str(request.args.get("process_id")))
        if op == "forget":
            if running is not None:
                self._forget(running)
        elif running is None:
            raise Refused("not_found", "there is no such process")
        elif op == "signal":
            running.signal(str(request.args.get("signal")))
        elif PTY not in running.process.streams:
            raise Refused("failed_precondition", "the process has no terminal")
        request.reply({})

    def _forget(self, running: "_FakeProcess") -> None:
        process = running.process
        if process.ended is None:
            raise Refused("failed_precondition", "the process still runs")
        del self._processes[process.id]
        if process.connection is not None:
            process.connection.release(process)
        for stream in process.streams.values():
            stream.discard()

    @property
    def budget(self) -> Budget:
        return self._budget


class _FakeProcess:
    """A program that runs as a task."""

    def __init__(
        self, guest: FakeGuest, process_id: str, args: dict[str, Any], program: Program, os_pid: int, cwd: str
    ) -> None:
        is_terminal = args.get("pty") is not None
        self.process = Process(process_id, pty=is_terminal, stdin=args.get("stdin") is True, budget=guest.budget)
        self._program = program
        self._os_pid = os_pid
        self._timeout = args.get("timeout") or None
        self._task: asyncio.Task[int] | None = None
        self._ended: Ended | None = None
        self._room = asyncio.Event()
        self.process.on_room = self._has_room
        user = args.get("user") or "user"
        env = {"HOME": "/home/user", "USER": user, "PATH": "/usr/bin:/bin", "PWD": cwd, **guest.env, **args["env"]}
        self._io = ProgramIo(args["argv"], env, cwd, guest.files, self._write, is_terminal=is_terminal)
        self.process.on_stdin = self._take
        self.process.on_stdin_end = self._io.end_stdin
        if not self.process.is_stdin_open:
            self._io.end_stdin()

    async def run(self) -> None:
        await asyncio.sleep(0)  # as a real one, it starts after the request was taken
        self.process.started(self._os_pid)
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

    def _take(self, data: bytes) -> None:
        self._io.give_stdin(data, lambda: self.process.consumed(len(data)))

    async def _write(self, number: int, data: bytes) -> None:
        view = memoryview(data)
        stream = self.process.streams[number]
        while view:
            while not stream.room:
                self._room.clear()
                await self._room.wait()
            count = min(len(view), stream.room)
            self.process.append(number, bytes(view[:count]))
            view = view[count:]
            await asyncio.sleep(0)

    def _has_room(self, stream: OutputStream) -> None:
        self._room.set()


class _Link:
    """Carries frames from the guest's side to a stream."""

    def __init__(self) -> None:
        self.connection: Connection
        self._waiting = bytearray()
        self._changed = asyncio.Event()
        self._is_closed = False

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < HIGH_WATER

    def write(self, data: bytes) -> None:
        if not self._is_closed:
            self._waiting += data
            self._changed.set()

    def close(self) -> None:
        self._is_closed = True
        self._changed.set()

    async def run(self, stream: ByteStream) -> None:
        while True:
            while not self._waiting:
                if self._is_closed:
                    await stream.aclose()
                    return
                self._changed.clear()
                await self._changed.wait()
            data = bytes(self._waiting)
            self._waiting.clear()
            await stream.send(data)
            self.connection.room()

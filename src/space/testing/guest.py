"""A guest in memory: the agent's protocol over the agent's own code, with programs and files that touch no host.

    guest = FakeGuest(token="…")
    stream = await guest.connect()        # or give `guest.serve` to something that accepts connections

`FakeGuest.answer` is a guest factory for `FakeRuntime`; such a guest can be saved and restored.  Programs are those of
`guest_programs`; whoever fuzzes the API above it reaches nothing else.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from space.core.node import MachineSpec
from space.core.ports import ByteStream
from space.testing.guest_files import MemoryFiles, file_requests
from space.testing.guest_process import FakeProcess
from space.testing.guest_programs import PROGRAMS
from space.testing.runtime import memory_streams
from space_guest.agent import MIN_TOKEN
from space_guest.connection import Connection
from space_guest.identity import HOSTNAME
from space_guest.output import Budget
from space_guest.process import Process
from space_guest.protocol import PTY, ProtocolError
from space_guest.request import Refused, Request

memory_stream_pair = memory_streams
USERS = frozenset({"root", "user", "nobody"})
HIGH_WATER = 1024 * 1024


class FakeGuest:
    """One guest; it outlives its connections, as a machine does."""

    def __init__(self, *, token: str, default_user: str = "user", hostname: str = "sandbox") -> None:
        self.boot_id = os.urandom(16).hex()
        self.machine_id = ""
        self.hostname = hostname
        self.files = MemoryFiles(default_user)
        self.env: dict[str, str] = {}
        self._token = token
        self._default_user = default_user
        self._budget = Budget()
        self._processes: dict[str, FakeProcess] = {}
        self._disowned: set[FakeProcess] = set()
        self._present: Connection | None = None
        self._tasks: set[asyncio.Future[None]] = set()
        self._requests = file_requests(self.files)
        self._last_pid = 1
        self._take_name()

    @classmethod
    def answer(cls, spec: MachineSpec, state: bytes | None = None) -> "AnsweringGuest":
        """Make a guest for a machine of `FakeRuntime`, new or from what `save` returned."""
        if state is None:
            guest = cls(token=spec.token, default_user=spec.default_user, hostname=spec.hostname)
        else:
            guest = cls.load(state)
        return AnsweringGuest(guest, spec.agent_port)

    def save(self) -> bytes:
        """Return the guest's memory: identity, files, and processes with the output that nobody has acknowledged."""
        saved = {
            "boot_id": self.boot_id,
            "token": self._token,
            "default_user": self._default_user,
            "hostname": self.hostname,
            "machine_id": self.machine_id,
            "env": self.env,
            "last_pid": self._last_pid,
            "files": self.files.save(),
            "processes": [running.save() for running in self._processes.values()],
            "disowned": [running.save() for running in self._disowned if running.process.ended is None],
        }
        return json.dumps(saved).encode()

    @classmethod
    def load(cls, state: bytes) -> "FakeGuest":
        """Return a guest that goes on from what `save` returned; several may."""
        saved = json.loads(state)
        guest = cls(token=saved["token"], default_user=saved["default_user"], hostname=saved["hostname"])
        guest.boot_id, guest.machine_id, guest.env = saved["boot_id"], saved["machine_id"], saved["env"]
        guest._last_pid = saved["last_pid"]
        guest.files.load(saved["files"])
        for kind in ("processes", "disowned"):
            for each in saved[kind]:
                program = PROGRAMS[str(each["args"]["argv"][0]).rpartition("/")[2]]
                running = FakeProcess.load(each, program, files=guest.files, budget=guest._budget)
                if kind == "processes":
                    guest._processes[running.process.id] = running
                else:
                    guest._disown(running)
                guest.own(running.run())
        return guest

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
        self._last_pid += 1
        running = self._processes[process_id] = FakeProcess(
            process_id,
            args,
            program,
            os_pid=self._last_pid,
            cwd=cwd,
            env=self.env,
            files=self.files,
            budget=self._budget,
        )
        self.own(running.run())
        return running.process

    def handle(self, op: str, request: Request) -> None:
        if op in self._requests:
            self.own(self._requests[op](request))
            return
        match op:
            case "ping" | "set_clock" | "add_entropy" | "prewarm":
                request.reply({})
            case "stats":
                request.reply({"cpu_seconds": 1.5, "memory_bytes": 32 << 20, "pids": 1 + len(self._processes)})
            case "processes":
                request.reply({"processes": [running.process.describe() for running in self._processes.values()]})
            case "personalise":
                self._personalise(request)
            case "quiesce":
                request.reply({})
                if self._present is not None:
                    self._present.link.finish()
            case "signal" | "resize" | "forget":
                self._tell(op, request)
            case _:
                raise Refused("unsupported", "this agent does not know the request")

    def _personalise(self, request: Request) -> None:
        args = request.args
        if len(args.get("token") or "a token that is long enough") < MIN_TOKEN:
            raise Refused("invalid_request", "the token is too short")
        if args.get("hostname") is not None and not HOSTNAME.fullmatch(args["hostname"]):
            raise Refused("invalid_request", "not a host name")
        self.env = self.env if args.get("env") is None else args["env"]
        self._token = args.get("token") or self._token
        self.hostname = args.get("hostname") or self.hostname
        if args.get("disown") is True:
            processes, self._processes = self._processes, {}
            for running in processes.values():
                self._disown(running)
        self._take_name()
        self.boot_id = os.urandom(16).hex()
        request.reply({"boot_id": self.boot_id})

    def _take_name(self) -> None:
        self.machine_id = os.urandom(16).hex()
        for name, text in (("hostname", self.hostname), ("machine-id", self.machine_id)):
            self.files.write(f"/etc/{name}", f"{text}\n".encode(), mode=0o644, user="root")

    def _disown(self, running: FakeProcess) -> None:
        running.drop()
        self._disowned.add(running)

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

    def _forget(self, running: FakeProcess) -> None:
        if running.process.ended is None:
            raise Refused("failed_precondition", "the process still runs")
        del self._processes[running.process.id]
        running.drop()


class AnsweringGuest:
    """A fake guest on the agent's port of a machine of `FakeRuntime`, and on no other."""

    def __init__(self, guest: FakeGuest, port: int) -> None:
        self.guest = guest
        self._port = port

    def __call__(self, port: int) -> Callable[[ByteStream], Awaitable[None]]:
        if port != self._port:
            raise ConnectionRefusedError(f"nothing listens on port {port}")
        return self.guest.serve

    def save(self) -> bytes:
        return self.guest.save()


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

    def finish(self) -> None:
        self.close()  # `run` sends what waits first

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

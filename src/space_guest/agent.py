"""The guest agent: the first process of a machine, through which the node runs processes and touches files."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable

from space_guest import machine
from space_guest.archive import Archives
from space_guest.connection import Connection
from space_guest.files import Files
from space_guest.identity import Identity
from space_guest.loop import Loop
from space_guest.process import Process
from space_guest.processes import Processes
from space_guest.request import Refused, Request
from space_guest.server import Server
from space_guest.spawners import Spawners
from space_guest.users import Users
from space_guest.watch import Watches
from space_guest.workers import Work, Workers

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs 5 ms at start
    from typing import Any


MIN_TOKEN = 16


class Agent:
    """Puts the parts together and serves the node's requests."""

    def __init__(self, *, address: tuple[str, int], token: str, default_user: str) -> None:
        self.boot_id = os.urandom(16).hex()
        self.loop = Loop()
        self.users = Users()
        self.spawners = Spawners(self.loop)
        self.processes = Processes(self.loop, self.users, self.spawners, default_user=default_user)
        self.server = Server(self.loop, self, token, address)
        self.workers = Workers(self.loop)
        self.watches = Watches(self.loop)
        self.identity = Identity()
        files = Files(self.users, default_user)
        archives = Archives(files)
        self._ops: dict[str, Callable[[Request], None]] = {
            "ping": lambda request: request.reply({}),
            "signal": self._signal,
            "resize": self._resize,
            "forget": self._forget,
            "processes": self._list,
            "stats": self._work(lambda channel: dict(machine.stats())),
            "stat": self._work(files.stat),
            "read": self._work(files.read),
            "write": self._work(files.write),
            "list": self._work(files.list),
            "move": self._work(files.move),
            "make_directory": self._work(files.make_directory),
            "remove": self._work(files.remove),
            "read_archive": self._work(archives.read),
            "write_archive": self._work(archives.write),
            "watch": self._watch,
            "set_clock": self._set_clock,
            "add_entropy": self._add_entropy,
            "personalise": self._personalise,
            "prewarm": self._prewarm,
            "quiesce": self._quiesce,
        }

    def run(self) -> None:
        self.processes.prepare()
        self.loop.call_soon(self.identity.write_files)
        signal.set_wakeup_fd(self.loop.wake_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: self.loop.call_threadsafe(self._reap))
        signal.signal(signal.SIGTERM, lambda number, frame: self.loop.call_threadsafe(self._end))
        self.loop.run()

    # Services of a connection

    def authenticated(self, connection: Connection) -> None:
        self.server.authenticated(connection)

    def spawn(self, process_id: str, args: dict[str, Any]) -> Process:
        return self.processes.spawn(process_id, args)

    def find(self, process_id: str) -> Process | None:
        return self.processes.find(process_id)

    def handle(self, op: str, request: Request) -> None:
        serve = self._ops.get(op)
        if serve is None:
            raise Refused("unsupported", "this agent does not know the request")
        serve(request)

    # Requests

    def _signal(self, request: Request) -> None:
        self.processes.signal(_process_id(request), request.args.get("signal"))
        request.reply({})

    def _resize(self, request: Request) -> None:
        self.processes.resize(_process_id(request), request.args.get("cols"), request.args.get("rows"))
        request.reply({})

    def _forget(self, request: Request) -> None:
        self.processes.forget(_process_id(request))
        request.reply({})

    def _list(self, request: Request) -> None:
        request.reply({"processes": self.processes.describe()})

    def _work(self, work: Work) -> Callable[[Request], None]:
        return lambda request: self.workers.serve(request, work)

    def _watch(self, request: Request) -> None:
        self.watches.check(request)
        self.workers.serve(request, self.watches.watch)

    def _set_clock(self, request: Request) -> None:
        machine.set_clock(request.args)
        request.reply({})

    def _add_entropy(self, request: Request) -> None:
        machine.add_entropy(request.args)
        request.reply({})

    def _personalise(self, request: Request) -> None:
        """Become another machine after a restore or for a sandbox: all of it in one request, or nothing.

        The present connection stays; the next one must know the new token.
        """
        env, token = request.args.get("env"), request.args.get("token")
        if env is not None and not (isinstance(env, dict) and all(isinstance(value, str) for value in env.values())):
            raise Refused("invalid_request", "env maps strings to strings")
        if token is not None and not (isinstance(token, str) and len(token) >= MIN_TOKEN):
            raise Refused("invalid_request", "the token is too short")
        self.identity.check(request.args)
        self.identity.apply(request.args)
        if env is not None:
            self.processes.env = env
        if request.args.get("disown") is True:
            self.processes.disown()
        if token is not None:
            self.server.renew(token)
        self.boot_id = os.urandom(16).hex()
        request.reply({"boot_id": self.boot_id})

    def _prewarm(self, request: Request) -> None:
        self.processes.prewarm(lambda: request.reply({}))

    def _quiesce(self, request: Request) -> None:
        """Answer, then hang up on everybody: a socket that is connected at a checkpoint haunts the restored kernel."""
        request.reply({})
        self.server.hang_up()

    # The first process's duties

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self.spawners.reaped(pid, status)

    def _end(self) -> None:
        """Ask everything to end, then end: with its first process the machine is gone."""
        if os.getpid() == 1:
            with contextlib.suppress(OSError):
                os.kill(-1, signal.SIGTERM)
        self.loop.call_later(0.2, self.loop.stop)


def _process_id(request: Request) -> str:
    value = request.args.get("process_id")
    if not isinstance(value, str):
        raise Refused("invalid_request", "process_id is needed")
    return value


def read_token(path: str) -> str:
    """Read the machine's token from a file, or from the descriptor that `fd:N` names."""
    fd = int(path[3:]) if path.startswith("fd:") else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        return file.read(4096).decode().strip()


def main(argv: list[str]) -> int:
    """Run the agent until its machine ends."""
    try:
        port, token_path, default_user = argv
        token = read_token(token_path)
        if len(token) < MIN_TOKEN:
            raise ValueError("the token is too short")
        agent = Agent(address=("0.0.0.0", int(port)), token=token, default_user=default_user)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"space agent: {error}; usage: agent.pyz PORT TOKEN_PATH DEFAULT_USER\n")
        return 2
    agent.run()
    return 0

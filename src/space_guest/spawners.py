"""The agent's side of the spawners: one a user, made when first needed, replaced when it died."""

from __future__ import annotations

import marshal
import os
import socket
import time
from collections import deque
from collections.abc import Callable

from space_guest.loop import READ, WRITE, Loop
from space_guest.process import SpawnFailed
from space_guest.spawner import (
    BAD_DIRECTORY,
    EVENT,
    EXITED,
    FAILED,
    LENGTH,
    NOT_FOUND,
    STARTED,
    start_zygote,
)
from space_guest.users import User

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs 5 ms at start
    from space_guest.ports import Order

MAX_ASKED = 256
ANSWER_SECONDS = 60.0
MAX_EARLY = 256


class Spawners:
    """Finds or makes the spawner of a user."""

    def __init__(self, loop: Loop, *, max_processes: int = 2048) -> None:
        self._loop = loop
        self._max_processes = max_processes
        self._zygote_pid, self._zygote = start_zygote()
        self._spawners: dict[tuple[int, int, tuple[int, ...]], _Spawner] = {}
        self._orphans: dict[int, Order] = {}
        self._early: dict[int, int] = {}  #: ends of orphans that came before the news of their spawner's end

    def of(self, user: User) -> _Spawner:
        identity = (user.uid, user.gid, user.groups)
        found = self._spawners.get(identity)
        if found is None:
            found = self._spawners[identity] = _Spawner(self._loop, self._fork(user), self._lost(identity))
        return found

    def reaped(self, pid: int, status: int) -> None:
        """The agent, as first process, reaped `pid`: an orphan of a dead spawner, or the zygote."""
        order = self._orphans.pop(pid, None)
        if order is not None:
            order.exited(status)
        elif pid == self._zygote_pid:
            self._zygote.close()
            self._zygote_pid, self._zygote = start_zygote()
        else:
            self._early[pid] = status
            if len(self._early) > MAX_EARLY:
                del self._early[next(iter(self._early))]

    def _fork(self, user: User) -> socket.socket:
        if os.getuid() != 0 and user.uid != os.getuid():
            raise SpawnFailed(126, f"the agent may not start processes as {user.name}")
        ours, theirs = socket.socketpair()
        identity = marshal.dumps((user.uid, user.gid, list(user.groups), self._max_processes))
        try:
            socket.send_fds(self._zygote, [identity], [theirs.fileno()])
        except OSError:
            self._zygote.close()
            self._zygote_pid, self._zygote = start_zygote()
            socket.send_fds(self._zygote, [identity], [theirs.fileno()])
        theirs.close()
        return ours

    def _lost(self, identity: tuple[int, int, tuple[int, ...]]) -> Callable[[dict[int, Order]], None]:
        def lost(running: dict[int, Order]) -> None:
            del self._spawners[identity]
            for pid, order in running.items():
                if os.getpid() == 1 and pid not in self._early and _exists(pid):
                    self._orphans[pid] = order
                else:
                    order.exited(self._early.pop(pid, None))

        return lost


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class _Spawner:
    """The agent's end of one spawner's socket."""

    def __init__(self, loop: Loop, link: socket.socket, lost: Callable[[dict[int, Order]], None]) -> None:
        self._loop = loop
        self._link = link
        self._lost = lost
        self._last_key = 0
        self._asked: dict[int, tuple[Order, float]] = {}
        self._running: dict[int, tuple[int, Order]] = {}
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._incoming = bytearray()
        self._is_watched = False
        link.setblocking(False)
        loop.watch(link.fileno(), READ, self._ready)

    def spawn(
        self,
        order: Order,
        argv: list[bytes],
        env: dict[bytes, bytes],
        cwd: list[bytes],
        fds: tuple[int, ...],
        *,
        is_terminal: bool,
    ) -> None:
        """Start a process with `fds` as stdout, stderr and stdin, or as its terminal; takes the descriptors over."""
        if len(self._asked) >= MAX_ASKED:
            close_all(fds)
            raise SpawnFailed(126, "too many processes are being started")
        self._last_key += 1
        body = marshal.dumps((self._last_key, argv, env, cwd, len(fds), is_terminal))
        self._asked[self._last_key] = order, time.monotonic()
        self._outgoing.append((LENGTH.pack(len(body)) + body, fds))
        self._flush()
        if not self._is_watched:
            self._is_watched = True
            self._loop.call_later(ANSWER_SECONDS, self._watch)

    def _flush(self) -> None:
        while self._outgoing:
            data, fds = self._outgoing.popleft()
            try:
                sent = socket.send_fds(self._link, [data], fds) if fds else self._link.send(data)
            except BlockingIOError:
                self._outgoing.appendleft((data, fds))
                self._loop.watch(self._link.fileno(), READ | WRITE, self._ready)
                return
            except OSError:
                close_all(fds)
                return  # it died; reading says so
            close_all(fds)
            if sent < len(data):
                self._outgoing.appendleft((data[sent:], ()))
        self._loop.watch(self._link.fileno(), READ, self._ready)

    def _ready(self, events: int) -> None:
        if events & ~WRITE:
            self._receive()
        elif events & WRITE:
            self._flush()

    def _receive(self) -> None:
        try:
            data = self._link.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._die()
            return
        self._incoming += data
        while len(self._incoming) >= EVENT.size:
            event = EVENT.unpack_from(self._incoming)
            del self._incoming[: EVENT.size]
            self._event(*event)
        if self._outgoing:
            self._flush()

    def _event(self, what: int, key: int, value: int, errno: int) -> None:
        if what == EXITED and key in self._running:
            self._running.pop(key)[1].exited(value)
        elif what == STARTED and key in self._asked and value > 0:
            order, _ = self._asked.pop(key)
            self._running[key] = value, order
            order.started(value)
        elif what == FAILED and key in self._asked:
            order, _ = self._asked.pop(key)
            order.failed(_failure(value, errno))
        else:
            self._die()  # only a spawner that its user has taken over says such a thing

    def _watch(self) -> None:
        """A user can stop its spawner; what it does not answer must not wait for ever."""
        self._is_watched = bool(self._asked)
        if not self._asked:
            return
        oldest = next(iter(self._asked.values()))[1]
        if time.monotonic() - oldest > ANSWER_SECONDS:
            self._die()
        else:
            self._loop.call_later(ANSWER_SECONDS, self._watch)

    def _die(self) -> None:
        if self._link.fileno() < 0:
            return
        self._loop.unwatch(self._link.fileno())
        self._link.close()
        asked, running = self._asked, self._running
        self._asked, self._running = {}, {}
        for _, fds in self._outgoing:
            close_all(fds)
        self._outgoing.clear()
        self._lost(dict(running.values()))
        for order, _ in asked.values():
            order.failed(SpawnFailed(126, "the process that starts this user's programs was killed or stopped"))


def _failure(value: int, errno: int) -> SpawnFailed:
    if value == NOT_FOUND:
        return SpawnFailed(127, "there is no such program")
    if value == BAD_DIRECTORY:
        return SpawnFailed(126, f"cannot change to the working directory: {os.strerror(errno).lower()}")
    return SpawnFailed(126, f"cannot execute the program: {os.strerror(errno).lower()}")


def close_all(fds: tuple[int, ...]) -> None:
    """Close these descriptors."""
    for fd in fds:
        os.close(fd)

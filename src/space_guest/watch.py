"""Changes below a path, through inotify.  A thread a watch: while the node does not read, the kernel's queue overflows
and says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import threading
import time
from struct import Struct

from space_guest.files import TEMPORARY, path_argument
from space_guest.loop import Loop
from space_guest.request import Refused, Request
from space_guest.workers import Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_WATCHES = 16
MAX_FOLDERS = 8192
IN_MODIFY, IN_ATTRIB, IN_MOVED_FROM, IN_MOVED_TO = 0x2, 0x4, 0x40, 0x80
IN_CREATE, IN_DELETE, IN_DELETE_SELF, IN_MOVE_SELF = 0x100, 0x200, 0x400, 0x800
IN_Q_OVERFLOW, IN_IGNORED, IN_ISDIR = 0x4000, 0x8000, 0x40000000
IN_CLOEXEC, IN_NONBLOCK = 0o2000000, 0o4000
_MASK = 0xFC6
_EVENT = Struct("iIII")
_KINDS = (
    (IN_CREATE | IN_MOVED_TO, "created"),
    (IN_MODIFY | IN_ATTRIB, "modified"),
    (IN_DELETE | IN_DELETE_SELF, "removed"),
    (IN_MOVED_FROM | IN_MOVE_SELF, "moved"),
)


class Watches:
    """The watch requests: few at a time."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.count = 0

    def check(self, request: Request) -> None:
        """Raise `Refused` if there are too many already."""
        if self.count >= MAX_WATCHES:
            raise Refused("rate_limited", "too many watches are open")

    def watch(self, channel: Channel) -> dict[str, Any]:
        path = path_argument(channel).rstrip("/") or "/"
        self.count += 1
        try:
            watch = _Watch(channel, path, is_recursive=channel.args.get("recursive") is True)
            try:
                watch.run()
            finally:
                watch.close()
        finally:
            self.count -= 1
        channel.end()
        return {}


class _Watch:
    def __init__(self, channel: Channel, root: str, *, is_recursive: bool) -> None:
        import ctypes

        self._libc = ctypes.CDLL(None, use_errno=True)
        self._errno = ctypes.get_errno
        self._channel = channel
        self._root = root
        self._is_recursive = is_recursive
        self._paths: dict[int, str] = {}
        self._fd = self._check(self._libc.inotify_init1(IN_CLOEXEC | IN_NONBLOCK))
        self._woken, self._wake = os.pipe()
        self._lock = threading.Lock()
        self._is_open = True

    def _check(self, result: int) -> int:
        if result < 0:
            raise OSError(self._errno(), "inotify")
        return result

    def run(self) -> None:
        """Report until the root is gone or the request is cancelled."""
        self._add(self._root)
        if self._is_recursive:
            self._add_below(self._root)
        self._channel.opened({})
        self._channel.on_cancel(self._stop)
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while self._paths:
            for fd, _ in poll.poll():
                if fd == self._woken:
                    return
                self._report(os.read(self._fd, 65536))

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            for fd in (self._fd, self._woken, self._wake):
                os.close(fd)

    def _stop(self) -> None:
        with self._lock:
            if self._is_open:
                os.write(self._wake, b"\0")

    def _add(self, path: str) -> None:
        if len(self._paths) >= MAX_FOLDERS:
            raise Refused("failed_precondition", f"more than {MAX_FOLDERS} directories to watch")
        self._paths[self._check(self._libc.inotify_add_watch(self._fd, os.fsencode(path), _MASK))] = path

    def _add_below(self, folder: str) -> list[str]:
        """Watch every directory below; return what is there already."""
        found = []
        for place, folders, names in os.walk(folder):
            for name in folders:
                path = f"{place.rstrip('/')}/{name}"
                if not os.path.islink(path):
                    with contextlib.suppress(FileNotFoundError):
                        self._add(path)
            found += [f"{place.rstrip('/')}/{name}" for name in (*folders, *names)]
        return found

    def _report(self, data: bytes) -> None:
        events: dict[tuple[str, str], None] = {}
        position = 0
        while position < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size + length
            name = data[position - length : position].rstrip(b"\0")
            for event in self._events(number, mask, name):
                events.pop(event, None)
                events[event] = None
        if events:
            now = time.time_ns()
            lines = [json.dumps({"kind": kind, "path": path, "at_ns": now}) + "\n" for kind, path in events]
            self._channel.send("".join(lines).encode())

    def _events(self, number: int, mask: int, name: bytes) -> list[tuple[str, str]]:
        if mask & IN_Q_OVERFLOW:
            return [("overflow", self._root)]
        folder = self._paths.get(number)
        if mask & IN_IGNORED:
            self._paths.pop(number, None)
            return []
        if folder is None or name.startswith(TEMPORARY.encode()):
            return []
        if mask & (IN_DELETE_SELF | IN_MOVE_SELF) and folder != self._root:
            return []  # its parent tells
        path = f"{folder.rstrip('/')}/{os.fsdecode(name)}" if name else folder
        kind = next((kind for bits, kind in _KINDS if mask & bits), None)
        found = [(kind, _shown(path))] if kind else []
        if self._is_recursive and mask & IN_ISDIR and mask & (IN_CREATE | IN_MOVED_TO):
            found += [("created", _shown(inner)) for inner in self._enter(path)]
        return found

    def _enter(self, path: str) -> list[str]:
        try:
            self._add(path)
            return self._add_below(path)
        except OSError:
            return []  # gone again


def _shown(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

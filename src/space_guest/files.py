"""Files: read, write, list, stat, move, make, remove.  Everything runs in a worker's thread, as the agent's user.

Paths are absolute and were checked by the node.  A write goes to a temporary name beside its target and is renamed
once all of it is on the disk, so that a file is either as before or complete.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import json
import os
import stat
from collections.abc import Iterator

from space_guest.protocol import CHUNK
from space_guest.request import Refused
from space_guest.users import NoSuchUser, User, Users
from space_guest.workers import Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TEMPORARY = ".space-"
MAX_DEPTH = 64
MAX_ENTRIES = 100_000
MAX_PSEUDO_FILE = 1024 * 1024  #: files of /proc say that they are empty


class Files:
    """The file requests; `default_user` owns what is created for nobody in particular."""

    def __init__(self, users: Users, default_user: str) -> None:
        self.users = users
        self.default_user = default_user

    def stat(self, channel: Channel) -> dict[str, Any]:
        path = path_argument(channel)
        return self.describe(path, os.lstat(path))

    def read(self, channel: Channel) -> dict[str, Any]:
        path, start, length = path_argument(channel), _number(channel, "start"), channel.args.get("length")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with open(fd, "rb", buffering=0) as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise Refused(
                    "failed_precondition", errno=errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
                )
            info = self.describe(path, found)
            head = file.read(MAX_PSEUDO_FILE) if not found.st_size else b""
            info["size"] = size = found.st_size or len(head)
            end = size if length is None else min(size, start + _number(channel, "length"))
            channel.opened(info)
            if head:
                channel.send(head[start:end])
            else:
                _send_range(channel, fd, start, end)
        channel.end()
        return {}

    def write(self, channel: Channel) -> dict[str, Any]:
        path, mode, owner = os.path.realpath(path_argument(channel)), _mode(channel), self.owner(channel)
        previous = _lstat(path)
        if previous is not None:
            _require_file(previous)
        if mode is None:
            mode = stat.S_IMODE(previous.st_mode) & 0o777 if previous else 0o644
        uid, gid = (owner.uid, owner.gid)
        if previous is not None and "user" not in channel.args:
            uid, gid = previous.st_uid, previous.st_gid
        folder = os.path.dirname(path)
        self._make_parents(folder, owner)
        temporary = f"{folder}/{TEMPORARY}{os.urandom(8).hex()}"
        try:
            _write_whole(channel, temporary, mode, uid, gid)
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(folder)
        return self.describe(path, os.lstat(path))

    def list(self, channel: Channel) -> dict[str, Any]:
        path = path_argument(channel)
        depth, limit = _number(channel, "depth"), _number(channel, "limit")
        if not 1 <= depth <= MAX_DEPTH or not 1 <= limit <= MAX_ENTRIES:
            raise Refused("invalid_request", "depth or limit out of range")
        lines: list[bytes] = []
        size = 0
        for count, entry in enumerate(self._walk(path, depth, limit), 1):
            lines.append(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
            size += len(lines[-1])
            if size >= CHUNK // 2:
                channel.send(b"".join(lines))
                lines, size = [], 0
            if count >= limit:
                break
        channel.send(b"".join(lines))
        channel.end()
        return {}

    def move(self, channel: Channel) -> dict[str, Any]:
        source, target = path_argument(channel, "source"), path_argument(channel, "target")
        try:
            os.rename(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _move_across(source, target)
        return self.describe(target, os.lstat(target))

    def make_directory(self, channel: Channel) -> dict[str, Any]:
        path, mode, owner = path_argument(channel), _mode(channel), self.owner(channel)
        self._make_parents(path.rstrip("/") or "/", owner, last_mode=mode)
        found = os.stat(path)
        if not stat.S_ISDIR(found.st_mode):
            raise Refused("failed_precondition", errno=errno.ENOTDIR)
        return self.describe(path, found)

    def remove(self, channel: Channel) -> dict[str, Any]:
        path = path_argument(channel).rstrip("/")
        if not path:
            raise Refused("failed_precondition", "the root directory stays")
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
        elif channel.args.get("recursive") is True:
            import shutil

            shutil.rmtree(path)
        else:
            os.rmdir(path)
        return {}

    def describe(self, path: str, found: os.stat_result) -> dict[str, Any]:
        """Return what callers see of a path."""
        kind = stat.S_IFMT(found.st_mode)
        users, groups = self.users.names()
        target = None
        if kind == stat.S_IFLNK:
            with contextlib.suppress(OSError):
                target = _shown(os.readlink(path))
        return {
            "path": _shown(path),
            "type": {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}.get(kind, "other"),
            "size": found.st_size,
            "mode": stat.S_IMODE(found.st_mode),
            "user": users.get(found.st_uid, str(found.st_uid)),
            "group": groups.get(found.st_gid, str(found.st_gid)),
            "modified_ns": found.st_mtime_ns,
            "target": target,
            "etag": f"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}-{found.st_ctime_ns:x}",
        }

    def owner(self, channel: Channel) -> User:
        """Return whom the request creates things for."""
        name = channel.args.get("user") or self.default_user
        if not isinstance(name, str):
            raise Refused("invalid_request", "user is a string")
        try:
            return self.users.find(name)
        except NoSuchUser:
            raise Refused("invalid_request", f"there is no user {name}") from None

    def _walk(self, folder: str, depth: int, limit: int) -> Iterator[dict[str, Any]]:
        """Yield entries in the order of their paths; of a huge directory only the first `limit` names are kept."""
        with os.scandir(folder) as entries:
            names = heapq.nsmallest(limit, (entry.name for entry in entries))
        for name in names:
            path = f"{folder.rstrip('/')}/{name}"
            found = _lstat(path)
            if found is None:
                continue  # removed meanwhile
            yield self.describe(path, found)
            if depth > 1 and stat.S_ISDIR(found.st_mode):
                with contextlib.suppress(PermissionError, FileNotFoundError, NotADirectoryError):
                    yield from self._walk(path, depth - 1, limit)

    def _make_parents(self, folder: str, owner: User, *, last_mode: int | None = None) -> None:
        """Make a directory and those above it, each new one owned by `owner`."""
        missing: list[str] = []
        place = folder
        while not os.path.isdir(place):
            if os.path.lexists(place):
                raise Refused("failed_precondition", errno=errno.ENOTDIR)
            missing.append(place)
            place = os.path.dirname(place)
        for path in reversed(missing):
            os.mkdir(path, 0o755)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                own(fd, owner.uid, owner.gid)
                os.fchmod(fd, last_mode if last_mode is not None and path == folder else 0o755)
            finally:
                os.close(fd)


def own(fd: int, uid: int, gid: int) -> None:
    """Give an open file to a user unless it is the user's already."""
    found = os.fstat(fd)
    if (found.st_uid, found.st_gid) != (uid, gid):
        os.fchown(fd, uid, gid)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def path_argument(channel: Channel, name: str = "path") -> str:
    """Return a path of the request; raises `Refused` unless it is absolute and can exist."""
    path = channel.args.get(name)
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path or len(path) > 4096:
        raise Refused("invalid_request", f"{name} is an absolute path")
    return path


def _require_file(found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise Refused("failed_precondition", errno=errno.EISDIR)
    if not stat.S_ISREG(found.st_mode):
        raise Refused("failed_precondition", "neither a file nor a directory")


def _send_range(channel: Channel, fd: int, start: int, end: int) -> None:
    while start < end:
        data = os.pread(fd, min(CHUNK, end - start), start)
        if not data:
            raise Refused("failed_precondition", "the file was cut while it was read")
        channel.send(data)
        start += len(data)


def _write_whole(channel: Channel, path: str, mode: int, uid: int, gid: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        size = 0
        while data := channel.receive():
            write_all(fd, data)
            size += len(data)
        own(fd, uid, gid)
        os.fchmod(fd, mode)
        os.fsync(fd)
        if os.fstat(fd).st_size != size:
            raise Refused("insufficient_storage", "the disk did not keep all bytes")
    finally:
        os.close(fd)


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # not every filesystem can
            os.fsync(fd)
    finally:
        os.close(fd)


def _move_across(source: str, target: str) -> None:
    """Move to another filesystem: copy beside the target, rename, remove the source."""
    import shutil

    temporary = f"{os.path.dirname(target)}/{TEMPORARY}{os.urandom(8).hex()}"
    try:
        if stat.S_ISDIR(os.lstat(source).st_mode):
            shutil.copytree(source, temporary, symlinks=True, copy_function=_copy)
        else:
            _copy(source, temporary)
        os.rename(temporary, target)
    except BaseException:
        if os.path.isdir(temporary) and not os.path.islink(temporary):
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise
    if stat.S_ISDIR(os.lstat(source).st_mode):
        shutil.rmtree(source)
    else:
        os.unlink(source)


def _copy(source: str, target: str) -> None:
    import shutil

    shutil.copy2(source, target, follow_symlinks=False)
    found = os.lstat(source)
    with contextlib.suppress(PermissionError):
        os.chown(target, found.st_uid, found.st_gid, follow_symlinks=False)


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _shown(name: str) -> str:
    """Return a name that can be printed: bytes that are not UTF-8 become U+FFFD."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _number(channel: Channel, name: str) -> int:
    value = channel.args.get(name, 0)
    if type(value) is not int or not 0 <= value < 2**63:
        raise Refused("invalid_request", f"{name} is no natural number")
    return value


def _mode(channel: Channel) -> int | None:
    value = channel.args.get("mode")
    if value is not None and not (type(value) is int and 0 <= value <= 0o7777):
        raise Refused("invalid_request", "mode is a number up to 7777 in octal")
    return value

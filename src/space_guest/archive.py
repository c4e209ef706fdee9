"""Directories as tar streams, both ways; uncompressed, flat in memory.

Unpacking walks from the directory down with descriptors and never through a link, so that neither an entry of the
archive nor a link that a program of the guest plants meanwhile leads outside.  Devices, pipes and links that point
outside are refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from space_guest.files import Files, own, path_argument, write_all
from space_guest.protocol import CHUNK
from space_guest.request import Refused
from space_guest.users import User
from space_guest.workers import Cancelled, Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    import tarfile
    from typing import IO, Any

MAX_HEADER = 1024 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Archives:
    """The archive requests."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self, channel: Channel) -> dict[str, Any]:
        import tarfile

        root = path_argument(channel).rstrip("/") or "/"
        if not os.path.isdir(root):
            os.lstat(root)
            raise Refused("failed_precondition", errno=errno.ENOTDIR)
        channel.opened({})
        with tarfile.open(fileobj=_sink(channel), mode="w|", bufsize=CHUNK) as archive:
            for path in _below(root):
                _add(archive, path, os.path.relpath(path, root))
                archive.members.clear()  # type: ignore[attr-defined]  # not in its stubs; else memory grows with each entry
        channel.end()
        return {}

    def write(self, channel: Channel) -> dict[str, Any]:
        import tarfile

        root, owner = path_argument(channel), self._files.owner(channel)
        self._files.make_directory(channel)
        fd = os.open(os.path.realpath(root), _FOLDER)
        unpacking = _Unpacking(fd, owner)
        try:
            with tarfile.open(fileobj=_source(channel), mode="r|", bufsize=CHUNK, tarinfo=_entry_class()) as archive:
                while (member := archive.next()) is not None:
                    unpacking.take(archive, member)
                    archive.members.clear()  # type: ignore[attr-defined]  # as above
        except (tarfile.TarError, EOFError) as error:
            if isinstance(error.__context__, Cancelled):
                raise Cancelled from None
            raise Refused("invalid_request", f"not a whole tar archive: {error}") from None
        finally:
            os.close(fd)
        while channel.receive():
            pass  # what follows the archive's end
        return {"files": unpacking.files, "bytes": unpacking.bytes}


class _Unpacking:
    """Puts the entries of an archive below a directory."""

    def __init__(self, root: int, owner: User) -> None:
        self._root = root
        self._owner = owner
        self.files = 0
        self.bytes = 0

    def take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if not parts:
            return  # the directory itself
        if member.isdir():
            os.close(self._enter(parts, mode=member.mode))
            return
        folder = self._enter(parts[:-1])
        try:
            self._clear(folder, parts[-1])
            if member.issym():
                self._link(folder, parts, member.linkname)
            elif member.islnk():
                self._hard_link(folder, parts, member.linkname)
            elif member.isreg():
                self._file(archive, member, folder, parts[-1])
            else:
                raise Refused("invalid_request", f"neither file, directory nor link: {member.name[:200]!r}")
        finally:
            os.close(folder)

    def _enter(self, parts: list[str], *, mode: int | None = None) -> int:
        """Open a directory below the root, making what is missing on the way; never through a link."""
        fd = os.dup(self._root)
        for index, name in enumerate(parts):
            try:
                inner = self._open_or_make(fd, name, mode if index == len(parts) - 1 else None)
            except NotADirectoryError:
                raise Refused("invalid_request", f"a link or file is in the way: {'/'.join(parts)[:200]!r}") from None
            finally:
                os.close(fd)
            fd = inner
        return fd

    def _open_or_make(self, folder: int, name: str, mode: int | None) -> int:
        try:
            return os.open(name, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=folder)
        fd = os.open(name, _FOLDER, dir_fd=folder)
        own(fd, self._owner.uid, self._owner.gid)
        os.fchmod(fd, 0o755 if mode is None else mode & 0o777 | 0o700)
        return fd

    @staticmethod
    def _clear(folder: int, name: str) -> None:
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):
            raise Refused("failed_precondition", f"a directory is in the way of {name[:200]!r}") from None

    def _file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, folder: int, name: str) -> None:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            source = archive.extractfile(member)
            size = 0
            while source is not None and (data := source.read(CHUNK)):
                write_all(fd, data)
                size += len(data)
            if size != member.size:
                raise EOFError("it ends within a file")
            own(fd, self._owner.uid, self._owner.gid)
            os.fchmod(fd, member.mode & 0o777)
            with contextlib.suppress(OSError, OverflowError, ValueError):
                os.utime(fd, (member.mtime, member.mtime))
        finally:
            os.close(fd)
        self.files += 1
        self.bytes += size

    def _link(self, folder: int, parts: list[str], target: str) -> None:
        if target.startswith("/") or not _stays_inside(parts[:-1], target):
            raise Refused("invalid_request", f"a link that leaves the directory: {'/'.join(parts)[:200]!r}")
        os.symlink(target, parts[-1], dir_fd=folder)
        os.chown(parts[-1], self._owner.uid, self._owner.gid, dir_fd=folder, follow_symlinks=False)
        self.files += 1

    def _hard_link(self, folder: int, parts: list[str], target: str) -> None:
        aim = _parts(target)
        if not aim:
            raise Refused("invalid_request", "a link to nothing")
        source = self._enter(aim[:-1])
        try:
            if not stat.S_ISREG(os.stat(aim[-1], dir_fd=source, follow_symlinks=False).st_mode):
                raise Refused("invalid_request", "a hard link to something that is no file")
            os.link(aim[-1], parts[-1], src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(source)
        self.files += 1


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise Refused("invalid_request", f"an entry that leaves the directory: {name[:200]!r}")
    return parts


def _stays_inside(folder: list[str], target: str) -> bool:
    depth = len(folder)
    for part in target.split("/"):
        depth += {"": 0, ".": 0, "..": -1}.get(part, 1)
        if depth < 0:
            return False
    return True


def _below(root: str) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted((*names, *folders)):
            yield f"{folder.rstrip('/')}/{name}"


def _add(archive: tarfile.TarFile, path: str, name: str) -> None:
    """Add one entry; what disappeared meanwhile, and sockets and devices, are left out."""
    try:
        entry = archive.gettarinfo(path, name)
    except FileNotFoundError:
        return
    if entry is None or not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
        return
    if not entry.isreg():
        archive.addfile(entry)
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    with open(fd, "rb") as file:
        try:
            archive.addfile(entry, file)
        except OSError as error:
            if error.errno is not None:
                raise
            raise Refused("failed_precondition", "a file was cut while it was read") from None


def _entry_class() -> type[tarfile.TarInfo]:
    """Return entries whose own headers are bounded: `tarfile` would read one of any size into memory."""
    import tarfile

    class Entry(tarfile.TarInfo):
        def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
            if not self.isreg() and self.size > MAX_HEADER:
                raise Refused("invalid_request", "a header of the archive is too long")
            found: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]  # not in its stubs
            return found

    return Entry


class _Sink:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def write(self, data: bytes) -> int:
        self._channel.send(data)
        return len(data)


class _Source:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._rest = b""

    def read(self, size: int) -> bytes:
        data = self._rest or self._channel.receive()
        self._rest = data[size:]
        return data[:size]


def _sink(channel: Channel) -> IO[bytes]:
    sink: Any = _Sink(channel)
    return sink  # type: ignore[no-any-return]


def _source(channel: Channel) -> IO[bytes]:
    source: Any = _Source(channel)
    return source  # type: ignore[no-any-return]

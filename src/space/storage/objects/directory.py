"""Objects as files of a local directory.

obstore's `LocalStore` renames a file into place without syncing it: after a power failure an object could be there by
name and hold nothing, and would never be uploaded again, since names stand for content.  So writing is our own: the
file is synced before it gets its name, and its name before `put` returns.  An object is a regular file, whatever key.
"""

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from obstore.store import LocalStore

from space.core.errors import InsufficientStorage, Unavailable
from space.storage.objects.bucket import BucketObjects

_INCOMING = ".incoming"  #: below the root, on the same file system; no key begins like this
_FORGOTTEN_SECONDS = 3600.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DirectoryObjects(BucketObjects):
    """Objects below `root`, which is made if it is missing (0700)."""

    def __init__(self, root: Path) -> None:
        self._root = root
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            (root / _INCOMING).mkdir(mode=0o700, exist_ok=True)
            self._remove_forgotten()
        except OSError as error:
            raise Unavailable(f"cannot use the object store {root}: {error.strerror}") from error
        super().__init__(LocalStore(root), name=str(root))

    def _put(self, key: str, data: bytes) -> None:
        try:
            self._write(self._path(key), data)
        except OSError as error:
            if error.errno in _FULL:
                raise InsufficientStorage(
                    f"the disk of the object store {self._name} is full; free some space"
                ) from error
            raise Unavailable(f"cannot write to the object store {self._name}: {error.strerror}") from error

    def _delete(self, keys: Sequence[str]) -> None:
        try:
            for path in [self._path(key) for key in keys]:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(f"cannot remove from the object store {self._name}: {error.strerror}") from error

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts) or key.startswith(".") or "\0" in key:
            raise ValueError(f"not a key: {key!r}")
        return self._root.joinpath(*parts)

    def _write(self, path: Path, data: bytes) -> None:
        temporary = self._root / _INCOMING / secrets.token_hex(16)
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            try:
                temporary.replace(path)
            except FileNotFoundError:
                self._make_parents(path.parent)
                temporary.replace(path)
            _sync(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def _make_parents(self, directory: Path) -> None:
        """Make directories whose names last: each is synced into the one above."""
        if directory == self._root or directory.is_dir():
            return
        self._make_parents(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
        _sync(directory.parent)

    def _remove_forgotten(self) -> None:
        """Remove what was being written when somebody was killed; others may be writing now."""
        for path in (self._root / _INCOMING).iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_mtime < time.time() - _FORGOTTEN_SECONDS:
                    path.unlink()


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

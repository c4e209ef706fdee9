"""What went wrong in SQLite, in the words of `core.errors`."""

import os
import sqlite3
from pathlib import Path

from space.core.errors import InsufficientStorage, SpaceError, Unavailable

_ALMOST_FULL_BYTES = 256 * 1024  # SQLite reports a full disk as an I/O error where it grows its shared-memory file


def typed(error: sqlite3.Error, path: Path) -> SpaceError:
    """Translate; nothing was changed by the transaction that `error` ended."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    match code:
        case sqlite3.SQLITE_FULL:
            return _full(path)
        case sqlite3.SQLITE_IOERR if _is_full(path):
            return _full(path)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Unavailable("the database is locked by another program; close it and try again", retry_after=1)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return Unavailable(
                "the database cannot be written: its file or file system is read-only; nothing was changed"
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return Unavailable("the database is damaged; stop SPACE and restore space.db from a backup")
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN:
            return Unavailable("the database's disk does not answer; nothing was changed")
        case _:
            return SpaceError(f"the database refused: {type(error).__name__}: {error}")


def _full(path: Path) -> SpaceError:
    return InsufficientStorage(
        f"the disk that holds {path.parent} is full; free some space and try again. Nothing was changed"
    )


def _is_full(path: Path) -> bool:
    try:
        fs = os.statvfs(path.parent)
    except OSError:
        return False
    return fs.f_bavail * fs.f_frsize < _ALMOST_FULL_BYTES

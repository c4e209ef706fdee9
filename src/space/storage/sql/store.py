"""`core.store.Store` over SQLite: opens the file, owns the writer thread and the reading connection."""

import contextlib
import fcntl
import os
import sqlite3
from contextlib import AbstractContextManager
from pathlib import Path

from space.core.errors import FailedPrecondition, Unavailable
from space.core.store import Watch
from space.storage.sql.accounts import SqlAccounts
from space.storage.sql.audit import SqlAudit
from space.storage.sql.events import SqlEvents
from space.storage.sql.faults import typed
from space.storage.sql.idempotency import SqlIdempotency
from space.storage.sql.operations import SqlOperations
from space.storage.sql.pools import SqlPools
from space.storage.sql.processes import SqlProcesses
from space.storage.sql.reader import Reader
from space.storage.sql.revision import HEAD, current_revision
from space.storage.sql.sandboxes import SqlSandboxes
from space.storage.sql.snapshots import SqlSnapshots
from space.storage.sql.watches import Watches
from space.storage.sql.writer import Writer

_WRITER_PATIENCE_MS = 5000  # how long a commit waits for another program that has locked the file
_READER_PATIENCE_MS = 50  # readers run in the event loop and must not hold it up


class SqlStore:
    """One server's store.  Made by `open_store`."""

    def __init__(self, path: Path, lock: int, writing: sqlite3.Connection, reading: sqlite3.Connection) -> None:
        self._lock = lock
        self._watches = Watches()
        self._writer = Writer(writing, path, on_commit=self._watches.notify)
        self._reader = Reader(reading, path)
        self.sandboxes = SqlSandboxes(self._writer, self._reader)
        self.operations = SqlOperations(self._writer, self._reader)
        self.snapshots = SqlSnapshots(self._writer, self._reader)
        self.pools = SqlPools(self._writer, self._reader)
        self.events = SqlEvents(self._writer, self._reader)
        self.processes = SqlProcesses(self._writer, self._reader)
        self.accounts = SqlAccounts(self._writer, self._reader)
        self.audit = SqlAudit(self._writer, self._reader)
        self.idempotency = SqlIdempotency(self._writer, self._reader)
        self._writer.start()

    def watch(self, topic: str) -> AbstractContextManager[Watch]:
        return self._watches.watch(topic)

    async def aclose(self) -> None:
        await self._writer.aclose()
        self._reader.close()
        os.close(self._lock)


def open_store(path: Path) -> SqlStore:
    """Open or create the database, and keep every other server away from it until `aclose`.

    Raises:
        FailedPrecondition: another server uses this data directory, or the database is from a newer SPACE.
        Unavailable, InsufficientStorage: the file cannot be read or written; the message says why.
    """
    lock = _lock(path)
    writing = reading = None
    try:
        _create_private(path)
        writing = _connect(path, _WRITER_PATIENCE_MS)
        writing.execute("PRAGMA journal_mode = WAL")
        writing.execute("PRAGMA synchronous = FULL")  # with NORMAL an acknowledged change can vanish with the power
        writing.execute("PRAGMA journal_size_limit = 67108864")
        if current_revision(writing) != HEAD:
            from space.storage.sql.schema import upgrade  # loads Alembic: 0.2 s of each start

            upgrade(writing)
        _free_leases(writing)
        reading = _connect(path, _READER_PATIENCE_MS)
        reading.execute("PRAGMA query_only = ON")
    except BaseException as error:
        for connection in (reading, writing):
            if connection is not None:
                connection.close()
        os.close(lock)
        if isinstance(error, sqlite3.Error):
            raise typed(error, path) from error
        if isinstance(cause := error.__cause__, sqlite3.Error):  # wrapped by SQLAlchemy during a migration
            raise typed(cause, path) from error
        raise
    return SqlStore(path, lock, writing, reading)


def _connect(path: Path, patience_ms: int) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=512)
    connection.execute(f"PRAGMA busy_timeout = {patience_ms}")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _create_private(path: Path) -> None:
    """Make the file readable by its owner only, before SQLite makes it with the umask; its companions follow it."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise Unavailable(f"cannot open {path}: {error.strerror}; check the data directory") from error


def _lock(path: Path) -> int:
    """Take the lock that makes this process the only server of the data directory; it ends with the process."""
    try:
        lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"cannot open {path}.lock: {error.strerror}; check the data directory") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise FailedPrecondition(
            f"another SPACE server (pid {holder}) uses {path.parent}; "
            "stop it, or set SPACE_DATA_DIR to another directory"
        ) from error
    with contextlib.suppress(OSError):  # for people only: a full disk is reported where it matters
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _free_leases(connection: sqlite3.Connection) -> None:
    """Make unfinished operations claimable at once, and projects collectable: holding the lock proves that whoever
    leased them is dead.
    """
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "UPDATE operations SET lease_owner = NULL, lease_until = NULL, next_at = 0"
        " WHERE status IN ('queued', 'running')"
    )
    connection.execute("UPDATE snapshot_collections SET until = NULL WHERE until IS NOT NULL")
    connection.execute("COMMIT")

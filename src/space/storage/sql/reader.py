"""A connection for reading on the event loop's own thread.

A point read takes 10-20 µs, less than handing it to a thread.  WAL readers never wait for the writer.  Queries must
use an index and be bounded: whatever runs here holds up everything else.
"""

import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy.dialects.sqlite import pysqlite
from sqlalchemy.sql import ClauseElement

from space.core.errors import Unavailable
from space.storage.sql.faults import typed

_DIALECT = pysqlite.dialect(paramstyle="named")


def compiled(statement: ClauseElement) -> tuple[str, Any]:
    """Turn a SQLAlchemy Core statement into SQL and its parameters, for `Tx.execute` or a `Reader`."""
    result = statement.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
    return str(result), result.params


class Reader:
    """Runs queries at once; errors are those of `core.errors`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._is_open = True

    def row(self, sql: str, parameters: Any = ()) -> Any:
        """Return the first row as a tuple, or None."""
        try:
            return self._connection.execute(sql, parameters).fetchone()
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def rows(self, sql: str, parameters: Any = ()) -> list[Any]:
        """Return all rows as tuples."""
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def rows_within(self, sql: str, parameters: Any, *, max_bytes: int, column: int) -> tuple[list[Any], bool]:
        """Return rows until those of one text column make `max_bytes`, one at least; and whether there are more.

        For rows whose size callers choose: a page of the largest would not fit into memory.
        """
        found: list[Any] = []
        size = 0
        try:
            rows = self._connection.execute(sql, parameters)
            for row in rows:
                if size > max_bytes:
                    rows.close()
                    return found, True
                found.append(row)
                size += len(row[column])
        except sqlite3.Error as error:
            raise self._failure(error) from error
        return found, False

    def data_version(self) -> int:
        """Return a number that changes whenever another connection has committed, whatever process it is of."""
        return int(self.row("PRAGMA data_version")[0])

    def close(self) -> None:
        self._is_open = False
        self._connection.close()

    def _failure(self, error: sqlite3.Error) -> Exception:
        if not self._is_open:
            return Unavailable("the store is closed: the server is stopping")
        return typed(error, self._path)

"""Processes, their sessions and the tokens of sessions."""

from collections.abc import Sequence
from datetime import datetime

from space.core.ids import SessionId
from space.storage.sql.reader import Reader
from space.storage.sql.values import milliseconds
from space.storage.sql.writer import Tx, Writer


def lose(tx: Tx, sandbox_id: str, generation: int, *, reason: str, at: datetime) -> None:
    """Mark what ran on machines up to `generation` as lost, inside the transaction that ends the machine."""
    tx.execute(
        "UPDATE processes SET state = 'lost', reason = ?, exited_at = ?"
        " WHERE sandbox_id = ? AND generation <= ? AND state IN ('created', 'running')",
        (reason, milliseconds(at), sandbox_id, generation),
    )


class SqlProcesses:
    """`core.store.ProcessStore`."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def purge(self, ended_before: datetime, *, limit: int) -> Sequence[SessionId]:
        return await self._writer.run(lambda tx: _purge(tx, milliseconds(ended_before), limit))


def _purge(tx: Tx, before: int, limit: int) -> list[SessionId]:
    rows = tx.execute(
        "DELETE FROM processes WHERE id IN (SELECT id FROM processes WHERE exited_at < ? ORDER BY exited_at LIMIT ?)"
        " RETURNING session_id",
        (before, limit),
    ).fetchall()
    return [SessionId(row[0]) for row in rows]

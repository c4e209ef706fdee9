"""Users, projects and tokens."""

from datetime import datetime

from space.storage.sql.reader import Reader
from space.storage.sql.values import milliseconds
from space.storage.sql.writer import Tx, Writer


class SqlAccounts:
    """`core.store.AccountStore`."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def purge(self, now: datetime) -> None:
        await self._writer.run(lambda tx: _purge(tx, milliseconds(now)))


def _purge(tx: Tx, now: int) -> None:
    tx.execute("DELETE FROM session_tokens WHERE expires_at <= ?", (now,))
    tx.execute("DELETE FROM tokens WHERE kind = 'login' AND expires_at <= ?", (now,))

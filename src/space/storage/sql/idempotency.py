"""Idempotency keys."""

from datetime import datetime

from space.core.account import IdempotencyRef
from space.storage.sql.reader import Reader
from space.storage.sql.values import milliseconds
from space.storage.sql.writer import Tx, Writer


def link(tx: Tx, ref: IdempotencyRef | None, target_id: str) -> None:
    """Tie a reserved key to what the change made, inside the change's transaction."""
    if ref is not None:
        tx.execute(
            "UPDATE idempotency_keys SET target_id = ? WHERE principal_id = ? AND method_path = ? AND key = ?",
            (target_id, ref.principal_id, ref.method_path, ref.key),
        )


class SqlIdempotency:
    """`core.store.IdempotencyStore`."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def purge(self, now: datetime) -> None:
        await self._writer.run(
            lambda tx: tx.execute("DELETE FROM idempotency_keys WHERE expires_at <= ?", (milliseconds(now),)) and None
        )

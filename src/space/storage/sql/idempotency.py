"""Idempotency keys.

One server owns the database file (`store.py` locks it), so a request in flight is known in its memory and needs no
row: a row appears with the change (`link`) or with the answer (`keep`).
"""

from datetime import UTC, datetime, timedelta

from space.core.account import IdempotencyRef
from space.core.errors import IdempotencyConflict
from space.core.store import KeptAnswer
from space.storage.sql.reader import Reader
from space.storage.sql.values import from_json, milliseconds, to_json
from space.storage.sql.writer import Tx, Writer

_KEPT_FOR = timedelta(hours=24)  # a key whose server died before the answer
_OF_KEY = "principal_id = ? AND method_path = ? AND key = ?"
_PURGED_AT_ONCE = 1000


def link(tx: Tx, ref: IdempotencyRef | None, target_id: str, *, at: datetime | None = None) -> None:
    """Tie a key to what the change made, inside the change's transaction.

    If the key is taken after all, the change must not happen: it raises, and the transaction is rolled back.
    """
    if ref is None:
        return
    name = (ref.principal_id, ref.method_path, ref.key)
    now = milliseconds(at if at is not None else datetime.now(UTC))
    tx.execute(f"DELETE FROM idempotency_keys WHERE {_OF_KEY} AND expires_at <= ?", (*name, now))  # noqa: S608
    inserted = tx.execute(
        "INSERT INTO idempotency_keys (principal_id, method_path, key, request_hash, target_id, created_at, expires_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (*name, ref.request_hash, target_id, now, now + int(_KEPT_FOR.total_seconds() * 1000)),
    ).rowcount
    if not inserted:
        raise IdempotencyConflict("this Idempotency-Key was used meanwhile; send the request again to get its answer")


class SqlIdempotency:
    """`core.store.IdempotencyStore`."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def find(self, ref: IdempotencyRef, *, now: datetime) -> KeptAnswer | None:
        row = self._reader.row(
            f"SELECT request_hash, target_id, status, body, headers FROM idempotency_keys WHERE {_OF_KEY}"  # noqa: S608
            " AND expires_at > ?",
            (ref.principal_id, ref.method_path, ref.key, milliseconds(now)),
        )
        if row is None:
            return None
        return KeptAnswer(
            request_hash=row[0],
            target_id=row[1],
            status=row[2],
            body=row[3],
            headers={} if row[4] is None else from_json(row[4]),
        )

    async def keep(self, ref: IdempotencyRef, answer: KeptAnswer, *, at: datetime, expires_at: datetime) -> None:
        await self._writer.run(lambda tx: _keep(tx, ref, answer, milliseconds(at), milliseconds(expires_at)))

    async def purge(self, now: datetime) -> None:
        while await self._writer.run(lambda tx: _purge(tx, milliseconds(now))) == _PURGED_AT_ONCE:
            pass


def _keep(tx: Tx, ref: IdempotencyRef, answer: KeptAnswer, at: int, expires_at: int) -> None:
    name = (ref.principal_id, ref.method_path, ref.key)
    tx.execute(f"DELETE FROM idempotency_keys WHERE {_OF_KEY} AND expires_at <= ?", (*name, at))  # noqa: S608
    tx.execute(
        "INSERT INTO idempotency_keys (principal_id, method_path, key, request_hash, status, headers, body,"
        " created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (principal_id, method_path, key) DO UPDATE SET status = excluded.status,"
        " headers = excluded.headers, body = excluded.body, expires_at = excluded.expires_at,"
        " target_id = CASE WHEN request_hash = excluded.request_hash THEN target_id END,"
        " request_hash = excluded.request_hash",
        (
            *name,
            ref.request_hash,
            answer.status,
            to_json(answer.headers),
            answer.body,
            at,
            expires_at,
        ),
    )


def _purge(tx: Tx, now: int) -> int:
    return tx.execute(
        "DELETE FROM idempotency_keys WHERE (principal_id, method_path, key) IN (SELECT principal_id, method_path, key"
        " FROM idempotency_keys WHERE expires_at <= ? LIMIT ?)",
        (now, _PURGED_AT_ONCE),
    ).rowcount

"""Idempotency keys.

One server owns the database file (`store.py` locks it), so a request in flight is known in its memory and needs no
row: a row appears with the change (`link`) or with the answer (`keep`).
"""

from datetime import datetime, timedelta

from space.core.account import IdempotencyRef
from space.core.errors import IdempotencyConflict
from space.core.store import KeptAnswer
from space.storage.sql.reader import Reader
from space.storage.sql.values import from_json, milliseconds, to_json
from space.storage.sql.writer import Tx, Writer

_KEPT_FOR = timedelta(hours=24)  # a key whose server died before the answer
_OF_KEY = "principal_id = ? AND method_path = ? AND key = ?"
_PURGED_AT_ONCE = 1000


def link(tx: Tx, ref: IdempotencyRef | None, target_id: str) -> None:
    """Tie a key to what the change made, inside the change's transaction.

    If the key is taken after all, the change must not happen: it raises, and the transaction is rolled back.
    """
    if ref is None:
        return
    name = (ref.principal_id, ref.method_path, ref.key)
    now = _now_of(tx, target_id)
    tx.execute(f"DELETE FROM idempotency_keys WHERE {_OF_KEY} AND expires_at <= ?", (*name, now))  # noqa: S608
    inserted = tx.execute(
        "INSERT INTO idempotency_keys (principal_id, method_path, key, request_hash, target_id, created_at, expires_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (*name, ref.request_hash, target_id, now, now + int(_KEPT_FOR.total_seconds() * 1000)),
    ).rowcount
    if not inserted:
        raise IdempotencyConflict("this Idempotency-Key was used meanwhile; send the request again to get its answer")

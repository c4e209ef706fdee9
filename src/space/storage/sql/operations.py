"""Operations between claim and end.  Each write after a claim is fenced by owner and attempt."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from space.core.errors import StaleVersion
from space.core.operation import Operation
from space.core.sandbox import Sandbox
from space.core.store import Lease, Outcome
from space.storage.sql import endings, operation_rows
from space.storage.sql.reader import Reader
from space.storage.sql.values import from_json, milliseconds, to_json
from space.storage.sql.writer import Tx, Writer

_DUE = (
    "SELECT id FROM operations WHERE status IN ('queued', 'running') AND waits_for IS NULL AND next_at <= ?"
    " ORDER BY next_at LIMIT ?"
)


class SqlOperations:
    """`core.store.OperationStore`."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def find(self, operation_id: str) -> Operation | None:
        row = self._reader.row(operation_rows.SELECT, (operation_id,))
        return operation_rows.decode(row) if row else None

    async def claim(self, lease: Lease, *, now: datetime, limit: int) -> Sequence[Operation]:
        if self._reader.row(_DUE, (milliseconds(now), 1)) is None:  # an idle server writes nothing
            return []
        return await self._writer.run(lambda tx: _claim(tx, lease, now, limit))

    async def renew(self, operation: Operation, lease: Lease) -> None:
        await self._writer.run(lambda tx: _renew(tx, operation, lease))

    async def finish_step(
        self, operation: Operation, step: str, *, lease: Lease, progress: Mapping[str, Any] | None = None
    ) -> Operation:
        made = await self._writer.run(lambda tx: _finish_step(tx, operation, step, lease, progress or {}))
        return replace(operation, step=step, lease_until=lease.until, progress=made)

    async def postpone(self, operation: Operation, *, until: datetime, error: Mapping[str, Any]) -> None:
        await self._writer.run(lambda tx: _postpone(tx, operation, until, error))

    async def finish(self, operation: Operation, outcome: Outcome) -> tuple[Sandbox, Operation]:
        return await self._writer.run(lambda tx: endings.finish(tx, operation, outcome))


def _claim(tx: Tx, lease: Lease, now: datetime, limit: int) -> list[Operation]:
    until = milliseconds(lease.until)
    claimed = []
    for (operation_id,) in tx.execute(_DUE, (milliseconds(now), limit)).fetchall():
        tx.execute(
            "UPDATE operations SET status = 'running', lease_owner = ?, lease_until = ?, next_at = ?,"
            " attempt = attempt + 1, started_at = COALESCE(started_at, ?) WHERE id = ?",
            (lease.owner, until, until, milliseconds(now), operation_id),
        )
        tx.touch(operation_id)
        claimed.append(operation_rows.decode(tx.row(operation_rows.SELECT, (operation_id,))))
    return claimed


def _renew(tx: Tx, operation: Operation, lease: Lease) -> None:
    until = milliseconds(lease.until)
    operation_rows.fenced(tx, operation, "lease_until = ?, next_at = ?", (until, until))


def _finish_step(
    tx: Tx, operation: Operation, step: str, lease: Lease, progress: Mapping[str, Any]
) -> Mapping[str, Any]:
    until = milliseconds(lease.until)
    row = tx.row("SELECT progress FROM operations WHERE id = ?", (operation.id,))
    if row is None:
        raise StaleVersion(f"operation {operation.id} was forgotten", operation_id=operation.id)
    merged = from_json(row[0]) | dict(progress)
    operation_rows.fenced(
        tx, operation, "step = ?, progress = ?, lease_until = ?, next_at = ?", (step, to_json(merged), until, until)
    )
    return merged


def _postpone(tx: Tx, operation: Operation, until: datetime, error: Mapping[str, Any]) -> None:
    operation_rows.fenced(
        tx,
        operation,
        "status = 'queued', lease_owner = NULL, lease_until = NULL, next_at = ?, error = ?",
        (milliseconds(until), to_json(error)),
    )

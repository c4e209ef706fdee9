"""An operation as a row: its columns, and the way there and back."""

from datetime import datetime
from typing import Any

from space.core.errors import StaleVersion
from space.core.ids import OperationId, ProjectId, SandboxId, SnapshotId
from space.core.lifecycle import Kind
from space.core.operation import Operation, Status
from space.storage.sql.values import from_json, instant, milliseconds, optional_instant, optional_milliseconds, to_json
from space.storage.sql.writer import Tx

_COLUMNS = (
    "id, kind, project_id, sandbox_id, generation, status, step, attempt, error, lease_owner, lease_until,"
    " created_at, started_at, finished_at, snapshot_id, request, progress, waits_for"
)
SELECT = f"SELECT {_COLUMNS} FROM operations WHERE id = ?"  # noqa: S608  constant
_PLACES = ", ".join("?" * (_COLUMNS.count(",") + 2))
_INSERT = f"INSERT INTO operations ({_COLUMNS}, next_at) VALUES ({_PLACES})"  # noqa: S608
_FENCE = " WHERE id = ? AND lease_owner = ? AND attempt = ? AND status = 'running'"


def insert(tx: Tx, operation: Operation) -> None:
    """Add an operation and wake who watches it."""
    tx.execute(
        _INSERT,
        (
            operation.id,
            operation.kind,
            operation.project_id,
            operation.sandbox_id,
            operation.generation,
            operation.status,
            operation.step,
            operation.attempt,
            to_json(operation.error) if operation.error else None,
            operation.lease_owner,
            optional_milliseconds(operation.lease_until),
            milliseconds(operation.created_at),
            optional_milliseconds(operation.started_at),
            optional_milliseconds(operation.finished_at),
            operation.snapshot_id,
            to_json(operation.request),
            to_json(operation.progress),
            operation.waits_for,
            milliseconds(operation.lease_until or operation.created_at),
        ),
    )
    tx.touch(operation.id)


def select(tx: Tx, operation_id: str) -> Operation | None:
    """Read an operation inside a transaction."""
    row = tx.row(SELECT, (operation_id,))
    return decode(row) if row else None


def fenced(tx: Tx, operation: Operation, assignments: str, values: tuple[Any, ...]) -> None:
    """Write to an operation that its claimer still holds; raises `StaleVersion`."""
    fence = (operation.id, operation.lease_owner, operation.attempt)
    done = tx.execute(f"UPDATE operations SET {assignments}{_FENCE}", (*values, *fence))  # noqa: S608  constants
    if done.rowcount != 1:
        raise StaleVersion(f"operation {operation.id} is no longer this worker's", operation_id=operation.id)
    tx.touch(operation.id)


def cancel(tx: Tx, operation_id: str, *, at: datetime) -> None:
    """End the operation that a delete preempts; its worker's next write fails."""
    tx.execute(
        "UPDATE operations SET status = 'cancelled', finished_at = ?, lease_owner = NULL, lease_until = NULL"
        " WHERE id = ? AND status IN ('queued', 'running')",
        (milliseconds(at), operation_id),
    )
    tx.touch(operation_id)


def decode(row: Any) -> Operation:
    """Make an operation of a row that `SELECT` found."""
    return Operation(
        id=OperationId(row[0]),
        kind=Kind(row[1]),
        project_id=ProjectId(row[2]),
        sandbox_id=SandboxId(row[3]),
        generation=row[4],
        status=Status(row[5]),
        step=row[6],
        attempt=row[7],
        error=from_json(row[8]) if row[8] else None,
        lease_owner=row[9],
        lease_until=optional_instant(row[10]),
        created_at=instant(row[11]),
        started_at=optional_instant(row[12]),
        finished_at=optional_instant(row[13]),
        snapshot_id=SnapshotId(row[14]) if row[14] else None,
        request=from_json(row[15]),
        progress=from_json(row[16]),
        waits_for=OperationId(row[17]) if row[17] else None,
    )

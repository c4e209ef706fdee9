"""The rows of operations: claims, leases and ends.  Each write after a claim is fenced by owner and attempt."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from space.core.errors import StaleVersion
from space.core.ids import OperationId, ProjectId, SandboxId
from space.core.lifecycle import RULES, Kind, State
from space.core.operation import Operation, Status
from space.core.sandbox import Sandbox
from space.core.store import Lease, Outcome
from space.storage.sql import events, processes, sandbox_rows
from space.storage.sql.reader import Reader
from space.storage.sql.values import from_json, instant, milliseconds, optional_instant, optional_milliseconds, to_json
from space.storage.sql.writer import Tx, Writer

_COLUMNS = (
    "id, kind, project_id, sandbox_id, generation, status, step, attempt, error, lease_owner, lease_until,"
    " created_at, started_at, finished_at"
)
_SELECT = f"SELECT {_COLUMNS} FROM operations WHERE id = ?"  # noqa: S608  constant
_INSERT = f"INSERT INTO operations ({_COLUMNS}, next_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
_DUE = "SELECT id FROM operations WHERE status IN ('queued', 'running') AND next_at <= ? ORDER BY next_at LIMIT ?"
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
            milliseconds(operation.lease_until or operation.created_at),
        ),
    )
    tx.touch(operation.id)


def select(tx: Tx, operation_id: str) -> Operation | None:
    """Read an operation inside a transaction."""
    row = tx.row(_SELECT, (operation_id,))
    return _decode(row) if row else None


def cancel(tx: Tx, operation_id: str, *, at: datetime) -> None:
    """End the operation that a delete preempts; its worker's next write fails."""
    tx.execute(
        "UPDATE operations SET status = 'cancelled', finished_at = ?, lease_owner = NULL, lease_until = NULL"
        " WHERE id = ? AND status IN ('queued', 'running')",
        (milliseconds(at), operation_id),
    )
    tx.touch(operation_id)


class SqlOperations:
    """`core.store.OperationStore`."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def find(self, operation_id: str) -> Operation | None:
        row = self._reader.row(_SELECT, (operation_id,))
        return _decode(row) if row else None

    async def claim(self, lease: Lease, *, now: datetime, limit: int) -> Sequence[Operation]:
        if self._reader.row(_DUE, (milliseconds(now), 1)) is None:  # an idle server writes nothing
            return []
        return await self._writer.run(lambda tx: _claim(tx, lease, now, limit))

    async def renew(self, operation: Operation, lease: Lease) -> None:
        await self._writer.run(lambda tx: _renew(tx, operation, lease))

    async def finish_step(self, operation: Operation, step: str, *, lease: Lease) -> Operation:
        await self._writer.run(lambda tx: _finish_step(tx, operation, step, lease))
        return replace(operation, step=step, lease_until=lease.until)

    async def postpone(self, operation: Operation, *, until: datetime, error: Mapping[str, Any]) -> None:
        await self._writer.run(lambda tx: _postpone(tx, operation, until, error))

    async def finish(self, operation: Operation, outcome: Outcome) -> tuple[Sandbox, Operation]:
        return await self._writer.run(lambda tx: _finish(tx, operation, outcome))


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
        claimed.append(_decode(tx.row(_SELECT, (operation_id,))))
    return claimed


def _renew(tx: Tx, operation: Operation, lease: Lease) -> None:
    until = milliseconds(lease.until)
    _fenced(tx, operation, "lease_until = ?, next_at = ?", (until, until))


def _finish_step(tx: Tx, operation: Operation, step: str, lease: Lease) -> None:
    until = milliseconds(lease.until)
    _fenced(tx, operation, "step = ?, lease_until = ?, next_at = ?", (step, until, until))


def _postpone(tx: Tx, operation: Operation, until: datetime, error: Mapping[str, Any]) -> None:
    _fenced(
        tx,
        operation,
        "status = 'queued', lease_owner = NULL, lease_until = NULL, next_at = ?, error = ?",
        (milliseconds(until), to_json(error)),
    )


def _fenced(tx: Tx, operation: Operation, assignments: str, values: tuple[Any, ...]) -> None:
    fence = (operation.id, operation.lease_owner, operation.attempt)
    done = tx.execute(f"UPDATE operations SET {assignments}{_FENCE}", (*values, *fence))  # noqa: S608  constants
    if done.rowcount != 1:
        raise StaleVersion(f"operation {operation.id} is no longer this worker's", operation_id=operation.id)
    tx.touch(operation.id)


def _finish(tx: Tx, operation: Operation, outcome: Outcome) -> tuple[Sandbox, Operation]:
    sandbox = sandbox_rows.select(tx, operation.sandbox_id)
    if sandbox is None or sandbox.held_by != operation.id or sandbox.generation != operation.generation:
        raise StaleVersion(f"operation {operation.id} no longer holds its sandbox", operation_id=operation.id)
    outcome = _checked(outcome, operation.kind, sandbox.state)
    error = to_json(outcome.error) if outcome.error else None
    _fenced(
        tx,
        operation,
        "status = ?, error = ?, finished_at = ?, lease_owner = NULL, lease_until = NULL",
        (outcome.status, error, milliseconds(outcome.at)),
    )
    sandbox = _settled(sandbox, operation.kind, outcome)
    sandbox_rows.save(tx, sandbox)
    if sandbox.state in (State.DELETED, State.FAILED):
        reason = "sandbox_deleted" if sandbox.state is State.DELETED else sandbox.reason or "sandbox_failed"
        processes.lose(tx, sandbox.id, sandbox.generation, reason=reason, at=outcome.at)
    data: dict[str, Any] = {"kind": operation.kind}
    if outcome.error:
        data["error"] = outcome.error
    if sandbox.reason:
        data["reason"] = sandbox.reason
    events.tell(tx, sandbox, f"operation.{outcome.status}", at=outcome.at, operation_id=operation.id, data=data)
    finished = select(tx, operation.id)
    if finished is None:
        raise AssertionError("the row was just written")
    return sandbox, finished


def _checked(outcome: Outcome, kind: Kind, state: State) -> Outcome:
    """Turn a success into a failure if the sandbox left the states in which the operation makes sense."""
    if outcome.status is not Status.SUCCEEDED or state in RULES[kind].start:
        return outcome
    error = {"code": "failed_precondition", "message": f"the sandbox became {state} while {kind} was under way"}
    return replace(outcome, status=Status.FAILED, error=error)


def _settled(sandbox: Sandbox, kind: Kind, outcome: Outcome) -> Sandbox:
    rule = RULES[kind]
    succeeded = outcome.status is Status.SUCCEEDED
    state = (rule.end if succeeded else rule.on_error) or sandbox.state
    started = succeeded and sandbox.state in rule.starts_machine
    reason = sandbox.reason
    if started:
        reason = None
    elif state is State.FAILED and sandbox.state is not State.FAILED:
        reason = outcome.reason
    return replace(
        sandbox,
        state=state,
        version=sandbox.version + 1,
        held_by=None,
        held_kind=None,
        reason=reason,
        started_at=outcome.at if started else sandbox.started_at,
        deleted_at=outcome.at if state is State.DELETED else None,
    )


def _decode(row: Any) -> Operation:
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
    )

"""Forks: children that are recorded with the fork's operation, and start or fail with it."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from space.core.ids import OperationId
from space.core.lifecycle import RULES, Kind
from space.core.operation import Operation, Status
from space.core.sandbox import Sandbox
from space.core.store import Creation
from space.storage.sql import events, operation_rows, sandbox_rows
from space.storage.sql.values import milliseconds, to_json
from space.storage.sql.writer import Tx

FAILED = "fork_failed"  #: the reason of children whose fork did not succeed


def check_child(child: Creation, fork_id: OperationId) -> None:
    """A child that does not wait could start before there is anything to start from."""
    operation = child.operation
    if operation.waits_for != fork_id or operation.status is not Status.QUEUED or operation.lease_owner is not None:
        raise AssertionError(f"child {child.sandbox.id} does not wait for the fork {fork_id}")


def settle(tx: Tx, fork: Operation, *, at: datetime) -> None:
    """Let the children of a fork that has ended start from its snapshot, or fail with it."""
    waiting = tx.execute(
        "SELECT id FROM operations WHERE waits_for = ? AND status IN ('queued', 'running')", (fork.id,)
    ).fetchall()
    if fork.status is Status.SUCCEEDED:
        tx.execute(
            "UPDATE operations SET snapshot_id = ?, waits_for = NULL, next_at = ?"
            " WHERE waits_for = ? AND status IN ('queued', 'running')",
            (fork.snapshot_id, milliseconds(at), fork.id),
        )
        tx.touch(*(row[0] for row in waiting))
        return
    error = fork.error or {"code": "failed_precondition", "message": "the sandbox to fork was deleted meanwhile"}
    for (operation_id,) in waiting:
        _fail(tx, operation_id, error, at)


def _fail(tx: Tx, operation_id: str, error: Mapping[str, Any], at: datetime) -> None:
    operation = operation_rows.select(tx, operation_id)
    sandbox = None if operation is None else sandbox_rows.select(tx, operation.sandbox_id)
    if operation is None or sandbox is None:
        raise AssertionError(f"operation {operation_id} was just read")
    tx.execute(
        "UPDATE operations SET status = 'failed', error = ?, finished_at = ? WHERE id = ?",
        (to_json(error), milliseconds(at), operation_id),
    )
    tx.touch(operation_id)
    failed = _failed(sandbox)
    sandbox_rows.save(tx, failed)
    data = {"kind": Kind.CREATE, "error": error, "reason": FAILED}
    events.tell(tx, failed, "operation.failed", at=at, operation_id=operation.id, data=data)


def _failed(sandbox: Sandbox) -> Sandbox:
    state = RULES[Kind.CREATE].on_error or sandbox.state
    return replace(sandbox, state=state, version=sandbox.version + 1, held_by=None, held_kind=None, reason=FAILED)

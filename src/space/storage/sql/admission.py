"""The transactions that admit a change: sandbox, operation, event, audit entry and idempotency link together."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from space.core.errors import NotFound, StaleVersion
from space.core.lifecycle import RULES, Admission, Kind, admit
from space.core.operation import Operation, Status
from space.core.sandbox import OnIdle, Sandbox
from space.core.store import Change, Changed, Creation
from space.storage.sql import audit, events, idempotency, operations, quota, sandbox_rows
from space.storage.sql.values import milliseconds
from space.storage.sql.writer import Tx


def create(tx: Tx, creation: Creation) -> None:
    """See `core.store.SandboxStore.create`."""
    quota.check(tx, creation)
    sandbox_rows.insert(tx, creation.sandbox)
    operations.insert(tx, creation.operation)
    events.tell(
        tx,
        creation.sandbox,
        "sandbox.created",
        at=creation.sandbox.created_at,
        operation_id=creation.operation.id,
        data={"template": creation.sandbox.template, "runtime": creation.sandbox.runtime},
    )
    audit.append(tx, creation.audit)
    idempotency.link(tx, creation.idempotency, creation.operation.id, at=creation.operation.created_at)


def change(tx: Tx, request: Change) -> Changed:
    """See `core.store.SandboxStore.change`."""
    sandbox = sandbox_rows.select(tx, request.sandbox_id)
    if sandbox is None or sandbox.project_id != request.project_id:
        raise NotFound(f"sandbox {request.sandbox_id} does not exist")
    if request.overdue is not None and not _is_overdue(tx, sandbox, request.overdue, at=request.at):
        raise StaleVersion(f"sandbox {sandbox.id} was used, extended or changed meanwhile")
    holder = (sandbox.held_by, sandbox.held_kind) if sandbox.held_by and sandbox.held_kind else None
    admission = admit(request.kind, sandbox.state, held_by=holder)
    match admission:
        case Admission.START:
            changed = _start(tx, request, sandbox)
        case Admission.JOIN:
            changed = _join(tx, sandbox)
        case Admission.SATISFIED:
            changed = _satisfy(tx, request, sandbox)
        case _:
            assert_never(admission)
    audit.append(tx, request.audit)
    idempotency.link(tx, request.idempotency, changed.operation.id, at=request.at)
    return changed


def _is_overdue(tx: Tx, sandbox: Sandbox, reason: str, *, at: datetime) -> bool:
    """Look again: what was found overdue may have been extended, changed or used since; a command counts as use."""
    if reason == "expired":
        return sandbox.expires_at is not None and sandbox.expires_at <= at
    used_after = at - timedelta(seconds=sandbox.auto_lifecycle.idle_seconds)
    if sandbox.auto_lifecycle.on_idle is not OnIdle.DELETE or sandbox.last_active_at > used_after:
        return False
    since = milliseconds(used_after)
    command = tx.row(
        "SELECT 1 FROM processes WHERE sandbox_id = ? AND (created_at > ? OR start_requested_at > ?) LIMIT 1",
        (sandbox.id, since, since),
    )
    return command is None


def _start(tx: Tx, request: Change, sandbox: Sandbox) -> Changed:
    cancelled = sandbox.held_by
    if cancelled is not None:
        operations.cancel(tx, cancelled, at=request.at)
    raises = sandbox.state in RULES[request.kind].starts_machine or request.kind is Kind.DELETE
    sandbox = replace(
        sandbox,
        version=sandbox.version + 1,
        generation=sandbox.generation + 1 if raises else sandbox.generation,
        held_by=request.operation_id,
        held_kind=request.kind,
    )
    if cancelled is not None:
        events.tell(
            tx, sandbox, "operation.cancelled", at=request.at, operation_id=cancelled, data={"by": request.kind}
        )
    sandbox_rows.save(tx, sandbox)
    operation = Operation(
        id=request.operation_id,
        kind=request.kind,
        project_id=sandbox.project_id,
        sandbox_id=sandbox.id,
        generation=sandbox.generation,
        status=Status.RUNNING,
        attempt=1,
        lease_owner=request.lease.owner,
        lease_until=request.lease.until,
        created_at=request.at,
        started_at=request.at,
    )
    operations.insert(tx, operation)
    events.tell(tx, sandbox, "operation.started", at=request.at, operation_id=operation.id, data={"kind": request.kind})
    return Changed(admission=Admission.START, sandbox=sandbox, operation=operation, cancelled=cancelled)


def _join(tx: Tx, sandbox: Sandbox) -> Changed:
    operation = operations.select(tx, sandbox.held_by or "")
    if operation is None:
        raise AssertionError(f"sandbox {sandbox.id} is held by an operation that does not exist")
    return Changed(admission=Admission.JOIN, sandbox=sandbox, operation=operation)


def _satisfy(tx: Tx, request: Change, sandbox: Sandbox) -> Changed:
    operation = Operation(
        id=request.operation_id,
        kind=request.kind,
        project_id=sandbox.project_id,
        sandbox_id=sandbox.id,
        generation=sandbox.generation,
        status=Status.SUCCEEDED,
        created_at=request.at,
        started_at=request.at,
        finished_at=request.at,
    )
    operations.insert(tx, operation)
    return Changed(admission=Admission.SATISFIED, sandbox=sandbox, operation=operation)

"""The transactions that admit a change: sandbox, operation, event, audit entry and idempotency link together."""

from dataclasses import replace
from typing import assert_never

from space.core.errors import FailedPrecondition, NotFound, SpaceError, StaleVersion
from space.core.ids import SnapshotId
from space.core.lifecycle import RULES, Admission, Kind, State, admit
from space.core.operation import Operation, Status
from space.core.sandbox import Sandbox
from space.core.snapshot import SnapshotState
from space.core.store import Change, Changed, Creation, Fork, Forked
from space.storage.sql import (
    audit,
    events,
    forks,
    idempotency,
    idleness,
    operation_rows,
    pools,
    quota,
    sandbox_rows,
    snapshot_rows,
)
from space.storage.sql.writer import Tx


def create(tx: Tx, creation: Creation) -> Sandbox:
    """See `core.store.SandboxStore.create`."""
    quota.check(tx, creation)
    sandbox = creation.sandbox
    if creation.operation.snapshot_id is not None:
        _check_origin(tx, creation.operation.snapshot_id, sandbox)
    if creation.pool is not None:
        sandbox = replace(sandbox, pooled_id=pools.claim(tx, sandbox, creation.pool))
    if creation.room is not None and sandbox.pooled_id is None:  # the memory of a claimed machine is promised already
        quota.check_room(tx, sandbox, creation.room)
    _record(tx, creation, sandbox)
    return sandbox


def _check_origin(tx: Tx, snapshot_id: SnapshotId, sandbox: Sandbox) -> None:
    """From this transaction on the operation's row keeps the snapshot; before it, somebody may have deleted it."""
    snapshot = snapshot_rows.select(tx, snapshot_id)
    if snapshot is None or snapshot.project_id != sandbox.project_id or snapshot.state is not SnapshotState.READY:
        raise NotFound(f"no snapshot {snapshot_id} to start from", id=snapshot_id)


def fork(tx: Tx, request: Fork) -> Forked:
    """See `core.store.SandboxStore.fork`."""
    changed = change(tx, request.change)
    children: list[Sandbox | SpaceError] = []
    for child in request.children:
        forks.check_child(child, changed.operation.id)
        try:  # whatever is refused is refused before anything is written
            quota.check(tx, child)
            if child.room is not None:
                quota.check_room(tx, child.sandbox, child.room)
        except SpaceError as error:
            children.append(error)
        else:
            _record(tx, child, child.sandbox)
            children.append(child.sandbox)
    refused = [child for child in children if isinstance(child, SpaceError)]
    if refused and len(refused) == len(children):
        raise refused[0]
    return Forked(changed=changed, children=children)


def _record(tx: Tx, creation: Creation, sandbox: Sandbox) -> None:
    sandbox_rows.insert(tx, sandbox)
    operation_rows.insert(tx, creation.operation)
    events.tell(
        tx,
        sandbox,
        "sandbox.created",
        at=sandbox.created_at,
        operation_id=creation.operation.id,
        data={"template": sandbox.template, "runtime": sandbox.runtime},
    )
    audit.append(tx, creation.audit)
    idempotency.link(tx, creation.idempotency, creation.operation.id, at=creation.operation.created_at)


def change(tx: Tx, request: Change) -> Changed:
    """See `core.store.SandboxStore.change`."""
    sandbox = sandbox_rows.select(tx, request.sandbox_id)
    if sandbox is None or sandbox.project_id != request.project_id:
        raise NotFound(f"sandbox {request.sandbox_id} does not exist")
    if request.overdue is not None and not idleness.is_overdue(tx, sandbox, request):
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


def _start(tx: Tx, request: Change, sandbox: Sandbox) -> Changed:
    cancelled = _cancel_holder(tx, request, sandbox)
    starts = sandbox.state in RULES[request.kind].starts_machine
    if starts:
        quota.check_start(tx, sandbox)
        if request.room is not None:
            quota.check_room(tx, sandbox, request.room)
    snapshot_id = _snapshot(tx, request, sandbox)
    raises = starts or request.kind is Kind.DELETE
    sandbox = replace(
        sandbox,
        version=sandbox.version + 1,
        generation=sandbox.generation + 1 if raises else sandbox.generation,
        held_by=request.operation_id,
        held_kind=request.kind,
    )
    if cancelled is not None:
        events.tell(
            tx, sandbox, "operation.cancelled", at=request.at, operation_id=cancelled.id, data={"by": request.kind}
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
        snapshot_id=snapshot_id,
        request=request.request,
        lease_owner=request.lease.owner,
        lease_until=request.lease.until,
        created_at=request.at,
        started_at=request.at,
    )
    operation_rows.insert(tx, operation)
    events.tell(tx, sandbox, "operation.started", at=request.at, operation_id=operation.id, data={"kind": request.kind})
    return Changed(
        admission=Admission.START,
        sandbox=sandbox,
        operation=operation,
        cancelled=cancelled.id if cancelled is not None else None,
    )


def _cancel_holder(tx: Tx, request: Change, sandbox: Sandbox) -> Operation | None:
    """End the operation that this one preempts, and with a fork the children that wait for it."""
    if sandbox.held_by is None:
        return None
    operation_rows.cancel(tx, sandbox.held_by, at=request.at)
    cancelled = operation_rows.select(tx, sandbox.held_by)
    if cancelled is not None and cancelled.kind is Kind.FORK:
        forks.settle(tx, cancelled, at=request.at)
    return cancelled


def _snapshot(tx: Tx, request: Change, sandbox: Sandbox) -> SnapshotId | None:
    """Return the snapshot that the operation starts from, or record the one that it will make."""
    is_suspended = sandbox.state is State.SUSPENDED
    match request.kind:
        case Kind.WAKE if not is_suspended:  # paused: its memory is still there
            return None
        case Kind.WAKE | Kind.RECOVER:
            return _durable(sandbox)
        case Kind.FORK if is_suspended:
            return _durable(sandbox)
        case Kind.SUSPEND | Kind.SNAPSHOT | Kind.FORK:
            if request.snapshot is None:
                raise AssertionError(f"a {request.kind} comes with the snapshot that it will make")
            made = replace(
                request.snapshot,
                project_id=sandbox.project_id,
                sandbox_id=sandbox.id,
                generation=sandbox.generation,
                state=SnapshotState.UPLOADING,
            )
            quota.check_snapshot(tx, made)
            snapshot_rows.insert(tx, made, same_as=sandbox.snapshot_id if is_suspended else None)
            return made.id
        case Kind.CREATE | Kind.PAUSE | Kind.DELETE:
            return None
        case _:
            assert_never(request.kind)


def _durable(sandbox: Sandbox) -> SnapshotId:
    if sandbox.snapshot_id is None:
        raise FailedPrecondition(
            f"sandbox {sandbox.id} has no durable state: it was never suspended or snapshotted; delete it",
            current_state=str(sandbox.state),
            reason=sandbox.reason,
        )
    return sandbox.snapshot_id


def _join(tx: Tx, sandbox: Sandbox) -> Changed:
    operation = operation_rows.select(tx, sandbox.held_by or "")
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
        request=request.request,
    )
    operation_rows.insert(tx, operation)
    return Changed(admission=Admission.SATISFIED, sandbox=sandbox, operation=operation)

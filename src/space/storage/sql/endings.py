"""The transaction that ends an operation: all that follows from it, and who waits for it."""

from dataclasses import replace
from typing import Any

from space.core.errors import StaleVersion
from space.core.lifecycle import RULES, Kind, State
from space.core.operation import Operation, Status
from space.core.sandbox import Sandbox
from space.core.store import Outcome
from space.storage.sql import events, forks, handover, operation_rows, sandbox_rows, snapshot_rows
from space.storage.sql.values import milliseconds, to_json
from space.storage.sql.writer import Tx

_MAKE_SNAPSHOTS = (Kind.SUSPEND, Kind.SNAPSHOT, Kind.FORK)


def finish(tx: Tx, operation: Operation, outcome: Outcome) -> tuple[Sandbox, Operation]:
    """See `core.store.OperationStore.finish`."""
    before = sandbox_rows.select(tx, operation.sandbox_id)
    if before is None or before.held_by != operation.id or before.generation != operation.generation:
        raise StaleVersion(f"operation {operation.id} no longer holds its sandbox", operation_id=operation.id)
    outcome = _checked(outcome, operation.kind, before.state)
    operation_rows.fenced(
        tx,
        operation,
        "status = ?, error = ?, finished_at = ?, lease_owner = NULL, lease_until = NULL",
        (outcome.status, to_json(outcome.error) if outcome.error else None, milliseconds(outcome.at)),
    )
    finished = operation_rows.select(tx, operation.id)
    if finished is None:
        raise AssertionError("the row was just written")
    has_new_snapshot = _publish(tx, before, finished, outcome)
    sandbox = _settled(before, finished, outcome, has_new_snapshot=has_new_snapshot)
    sandbox_rows.save(tx, sandbox)
    _settle_processes(tx, before, sandbox, finished, outcome)
    data: dict[str, Any] = {"kind": finished.kind}
    if outcome.error:
        data["error"] = outcome.error
    if sandbox.reason:
        data["reason"] = sandbox.reason
    events.tell(tx, sandbox, f"operation.{outcome.status}", at=outcome.at, operation_id=operation.id, data=data)
    if finished.kind is Kind.FORK:
        forks.settle(tx, finished, at=outcome.at)
    return sandbox, finished


def _checked(outcome: Outcome, kind: Kind, state: State) -> Outcome:
    """Turn a success into a failure if the sandbox left the states in which the operation makes sense.

    A moment that was saved before its machine ended is as good as any.
    """
    is_saved = outcome.published is not None and RULES[kind].end is None
    if outcome.status is not Status.SUCCEEDED or state in RULES[kind].start or is_saved:
        return outcome
    error = {"code": "failed_precondition", "message": f"the sandbox became {state} while {kind} was under way"}
    return replace(outcome, status=Status.FAILED, error=error)


def _publish(tx: Tx, sandbox: Sandbox, operation: Operation, outcome: Outcome) -> bool:
    """Make the operation's snapshot ready, if it has one that is durable; returns whether it did.

    A suspend whose machine ended before it could be released has failed, and its sandbox can be recovered from there.
    """
    if operation.kind not in _MAKE_SNAPSHOTS or (outcome.status is not Status.SUCCEEDED and outcome.published is None):
        return False
    if operation.kind is Kind.FORK and sandbox.state is State.SUSPENDED:  # its children start from the sandbox's own
        return False
    if outcome.published is None or outcome.published.snapshot_id != operation.snapshot_id:
        raise AssertionError(f"a {operation.kind} succeeds only when its snapshot is published")
    snapshot_rows.publish(tx, sandbox, outcome.published, at=outcome.at)
    return True


def _settled(sandbox: Sandbox, operation: Operation, outcome: Outcome, *, has_new_snapshot: bool) -> Sandbox:
    rule = RULES[operation.kind]
    succeeded = outcome.status is Status.SUCCEEDED
    state = (rule.end if succeeded else rule.on_error) or sandbox.state
    started = succeeded and sandbox.state in rule.starts_machine
    reason = sandbox.reason
    if started:
        reason = None
    elif state is State.FAILED and sandbox.state is not State.FAILED:
        reason = outcome.reason
    snapshot_id = sandbox.snapshot_id
    if state is State.DELETED:
        snapshot_id = None
    elif succeeded and operation.kind is Kind.CREATE:
        snapshot_id = operation.snapshot_id  # until it has a later one, a child can return to where it was forked
    elif has_new_snapshot and sandbox.state is not State.SUSPENDED:  # of a suspended one it is no later moment
        snapshot_id = operation.snapshot_id
    is_awake = succeeded and operation.kind in (Kind.WAKE, Kind.RECOVER)
    return replace(
        sandbox,
        state=state,
        version=sandbox.version + 1,
        held_by=None,
        held_kind=None,
        reason=reason,
        restorable=snapshot_id is not None,
        snapshot_id=snapshot_id,
        started_at=outcome.at if started else sandbox.started_at,
        last_active_at=max(sandbox.last_active_at, outcome.at) if is_awake else sandbox.last_active_at,
        deleted_at=outcome.at if state is State.DELETED else None,
    )


def _settle_processes(tx: Tx, before: Sandbox, sandbox: Sandbox, operation: Operation, outcome: Outcome) -> None:
    if sandbox.state in (State.DELETED, State.FAILED):
        reason = "sandbox_deleted" if sandbox.state is State.DELETED else sandbox.reason or "sandbox_failed"
        handover.lose(tx, sandbox.id, sandbox.generation, reason=reason, at=outcome.at)
    elif outcome.status is not Status.SUCCEEDED:
        return
    elif operation.kind is Kind.WAKE and before.state is State.SUSPENDED:
        snapshot = snapshot_rows.select(tx, before.snapshot_id or "")
        handover.hand_over(tx, sandbox.id, sandbox.generation, snapshot)
    elif operation.kind is Kind.RECOVER:
        snapshot = snapshot_rows.select(tx, operation.snapshot_id or "")
        if snapshot is None:
            raise AssertionError(f"sandbox {sandbox.id} was recovered from a snapshot that does not exist")
        handover.roll_back(tx, sandbox.id, sandbox.generation, snapshot, at=outcome.at)

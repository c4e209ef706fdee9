"""What follows from idleness, and from when: kept in a column, so that looking for it needs no scan."""

from datetime import datetime, timedelta

from space.core.lifecycle import Kind, State
from space.core.sandbox import OnIdle, Sandbox
from space.core.store import Change
from space.storage.sql.values import milliseconds
from space.storage.sql.writer import Tx

_FOLLOWS = {  # what idleness still leads to from each state
    State.RUNNING: {OnIdle.PAUSE, OnIdle.SUSPEND, OnIdle.DELETE},
    State.PAUSED: {OnIdle.SUSPEND, OnIdle.DELETE},
    State.SUSPENDED: {OnIdle.DELETE},
    State.FAILED: {OnIdle.DELETE},
}


def idle_at(sandbox: Sandbox) -> int | None:
    """Return from when on the sandbox is idle; None if nothing would follow from that in its state."""
    lifecycle = sandbox.auto_lifecycle
    if lifecycle.on_idle not in _FOLLOWS.get(sandbox.state, ()):
        return None
    return milliseconds(sandbox.last_active_at + timedelta(seconds=lifecycle.idle_seconds))


def is_overdue(tx: Tx, sandbox: Sandbox, request: Change) -> bool:
    """Look again: what was found overdue may have been extended, changed or used since; a command counts as use."""
    if request.overdue == "expired":
        return sandbox.expires_at is not None and sandbox.expires_at <= request.at
    if request.kind is Kind.DELETE and sandbox.auto_lifecycle.on_idle is not OnIdle.DELETE:
        return False
    idle = idle_at(sandbox)
    if idle is None or idle > milliseconds(request.at) or sandbox.held_by is not None:
        return False
    return not _had_command_since(tx, sandbox, request.at - timedelta(seconds=sandbox.auto_lifecycle.idle_seconds))


def _had_command_since(tx: Tx, sandbox: Sandbox, time: datetime) -> bool:
    since = milliseconds(time)
    command = tx.row(
        "SELECT 1 FROM processes WHERE sandbox_id = ? AND (created_at > ? OR start_requested_at > ?) LIMIT 1",
        (sandbox.id, since, since),
    )
    return command is not None

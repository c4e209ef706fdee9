"""What follows from idleness, and from when: kept in a column, so that looking for it needs no scan."""

from datetime import timedelta

from space.core.lifecycle import State
from space.core.sandbox import OnIdle, Sandbox
from space.storage.sql.values import milliseconds

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

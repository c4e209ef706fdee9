"""Sandboxes in the states that the suites start from."""

from datetime import timedelta
from typing import Any

from space.core.lifecycle import Kind
from space.core.operation import Operation, Status
from space.core.sandbox import Sandbox
from space.core.store import Outcome, SandboxFilter, Store
from space.testing.projects import add_project
from space.testing.rows import OTHER_PROJECT, PROJECT, START, change, creation, succeed

SECOND = timedelta(seconds=1)


async def add_projects(store: Store, **quotas: Any) -> None:
    """Add the two projects that the suite uses; `quotas` are of the first."""
    await add_project(store, PROJECT, name="one", at=START, **quotas)
    await add_project(store, OTHER_PROJECT, name="two", at=START)


async def a_new(store: Store, **changes: Any) -> tuple[Sandbox, Operation]:
    """Record a create."""
    made = creation(**changes)
    return await store.sandboxes.create(made), made.operation


async def a_running(store: Store, **changes: Any) -> Sandbox:
    """Record a create that succeeded at once."""
    sandbox, operation = await a_new(store, **changes)
    ended, _ = await store.operations.finish(operation, Outcome(status=Status.SUCCEEDED, at=sandbox.created_at))
    return ended


async def after(store: Store, sandbox: Sandbox, *kinds: Kind, seconds: float = 0) -> Sandbox:
    """Let changes succeed, one after the other."""
    at = START + timedelta(seconds=seconds)
    for kind in kinds:
        changed = await store.sandboxes.change(change(sandbox, kind, at=at))
        sandbox = await succeed(store, changed.operation, at=at)
    return sandbox


async def a_deleted(store: Store, **changes: Any) -> Sandbox:
    """Record a sandbox that was deleted at once."""
    return await after(store, await a_running(store, **changes), Kind.DELETE)


async def ids(store: Store, **where: Any) -> list[str]:
    """Return which sandboxes of the first project a filter selects."""
    page = await store.sandboxes.list(PROJECT, SandboxFilter(**where), limit=100, cursor=None)
    return [row.id for row in page.items]


def success(seconds: float = 0) -> Outcome:
    """Return the success of an operation that makes no snapshot."""
    return Outcome(status=Status.SUCCEEDED, at=START + timedelta(seconds=seconds))


def failure(seconds: float = 0, *, reason: str | None = None) -> Outcome:
    """Return a failure."""
    error = {"code": "internal", "message": "it did not work"}
    return Outcome(status=Status.FAILED, at=START + timedelta(seconds=seconds), error=error, reason=reason)

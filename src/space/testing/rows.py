"""Rows for tests of the store."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

from space.core.event import AuditEntry
from space.core.ids import NodeId, OperationId, ProjectId, SandboxId, make_id
from space.core.lifecycle import Kind, State
from space.core.operation import Operation, Status
from space.core.sandbox import AutoLifecycle, Resources, Sandbox
from space.core.store import Change, Creation, Lease

START = datetime(2026, 1, 1, tzinfo=UTC)
PROJECT = ProjectId("prj" + "0" * 26)
OTHER_PROJECT = ProjectId("prj" + "0" * 25 + "4")
NODE = NodeId("nod" + "0" * 26)
_count = itertools.count()


def new_id(prefix: str, at: datetime = START) -> str:
    """Return an id that is greater than those made before it at the same time."""
    return make_id(prefix, unix_ms=int(at.timestamp() * 1000), randomness=next(_count).to_bytes(10, "big"))


def entry(at: datetime = START, *, project_id: ProjectId = PROJECT) -> AuditEntry:
    """Return an audit entry."""
    return AuditEntry(
        project_id=project_id,
        principal="tok",
        action="test",
        target=None,
        outcome="ok",
        request_id="req",
        address=None,
        details={},
        at=at,
    )


def lease(owner: str = "one", *, at: datetime = START, seconds: float = 15) -> Lease:
    """Return a lease from `at`."""
    return Lease(owner=owner, until=at + timedelta(seconds=seconds))


def creation(
    *, at: datetime = START, owner: str = "one", default_max_sandboxes: int | None = None, **changes: Any
) -> Creation:
    """Return a create that `owner` drives; `changes` are to the sandbox."""
    operation_id = OperationId(new_id("ops", at))
    fields: dict[str, Any] = {
        "id": SandboxId(new_id("sbx", at)),
        "project_id": PROJECT,
        "template": "base",
        "template_digest": "sha256:" + "0" * 64,
        "runtime": "fake",
        "resources": Resources(),
        "env": {},
        "metadata": {},
        "auto_lifecycle": AutoLifecycle(),
        "secure_ports": True,
        "state": State.PENDING,
        "version": 1,
        "generation": 1,
        "held_by": operation_id,
        "held_kind": Kind.CREATE,
        "node_id": NODE,
        "reason": None,
        "restorable": False,
        "created_by": "tok",
        "created_at": at,
        "started_at": None,
        "last_active_at": at,
        "expires_at": None,
        "deleted_at": None,
    }
    sandbox = Sandbox(**{**fields, **changes})
    held = lease(owner, at=at)
    operation = Operation(
        id=operation_id,
        kind=Kind.CREATE,
        project_id=sandbox.project_id,
        sandbox_id=sandbox.id,
        generation=1,
        status=Status.RUNNING,
        attempt=1,
        lease_owner=held.owner,
        lease_until=held.until,
        created_at=at,
        started_at=at,
    )
    return Creation(
        sandbox=sandbox,
        operation=operation,
        audit=entry(at, project_id=sandbox.project_id),
        default_max_sandboxes=default_max_sandboxes,
    )


def change(sandbox: Sandbox, kind: Kind, *, at: datetime = START, owner: str = "one", **changes: Any) -> Change:
    """Return a request to change `sandbox`."""
    fields: dict[str, Any] = {
        "kind": kind,
        "sandbox_id": sandbox.id,
        "project_id": sandbox.project_id,
        "operation_id": OperationId(new_id("ops", at)),
        "lease": lease(owner, at=at),
        "at": at,
        "audit": entry(at),
    }
    return Change(**{**fields, **changes})

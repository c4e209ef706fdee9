"""Rows for tests of the store."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from space.core.event import AuditEntry
from space.core.ids import NodeId, OperationId, PooledId, ProjectId, SandboxId, SnapshotId, make_id
from space.core.lifecycle import Kind, State
from space.core.operation import Operation, Status
from space.core.pool import PooledMachine, PooledState, PoolKey
from space.core.sandbox import AutoLifecycle, Resources, Sandbox
from space.core.snapshot import Published, Purpose, Snapshot
from space.core.store import Change, Creation, Fork, Lease, Outcome, Store

START = datetime(2026, 1, 1, tzinfo=UTC)
PROJECT = ProjectId("prj" + "0" * 26)
OTHER_PROJECT = ProjectId("prj" + "0" * 25 + "4")
NODE = NodeId("nod" + "0" * 26)
DIGEST = "sha256:" + "0" * 64
KEY = PoolKey(template_digest=DIGEST, runtime="fake", resources=Resources())
MAKES_SNAPSHOT = {Kind.SUSPEND: Purpose.SUSPEND, Kind.SNAPSHOT: Purpose.NAMED, Kind.FORK: Purpose.FORK}
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
        "template_digest": DIGEST,
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
    """Return a request to change `sandbox`, with the snapshot that it makes if it makes one."""
    fields: dict[str, Any] = {
        "kind": kind,
        "sandbox_id": sandbox.id,
        "project_id": sandbox.project_id,
        "operation_id": OperationId(new_id("ops", at)),
        "lease": lease(owner, at=at),
        "at": at,
        "audit": entry(at),
        "snapshot": snapshot(sandbox, MAKES_SNAPSHOT[kind], at=at) if kind in MAKES_SNAPSHOT else None,
    }
    return Change(**{**fields, **changes})


def snapshot(sandbox: Sandbox, purpose: Purpose, *, at: datetime = START) -> Snapshot:
    """Return a snapshot of `sandbox` that is about to be made."""
    return Snapshot(
        id=SnapshotId(new_id("snp", at)),
        project_id=sandbox.project_id,
        sandbox_id=sandbox.id,
        generation=sandbox.generation,
        purpose=purpose,
        name="mine" if purpose is Purpose.NAMED else None,
        runtime=sandbox.runtime,
        template=sandbox.template,
        template_digest=sandbox.template_digest,
        resources=sandbox.resources,
        created_by="tok",
        created_at=at,
    )


def fork(sandbox: Sandbox, count: int, *, at: datetime = START, owner: str = "one", **changes: Any) -> Fork:
    """Return a request for children of `sandbox`; `changes` are to each child's `Creation`."""
    request = change(sandbox, Kind.FORK, at=at, owner=owner)
    children = []
    for _ in range(count):
        made = creation(at=at, project_id=sandbox.project_id, resources=sandbox.resources)
        waiting = replace(
            made.operation,
            status=Status.QUEUED,
            attempt=0,
            lease_owner=None,
            lease_until=None,
            started_at=None,
            waits_for=request.operation_id,
        )
        children.append(replace(made, operation=waiting, **changes))
    return Fork(change=request, children=children)


def machine(*, at: datetime = START, **changes: Any) -> PooledMachine:
    """Return a machine of a pool that is about to be started."""
    fields: dict[str, Any] = {
        "id": PooledId(new_id("mch", at)),
        "node_id": NODE,
        "node_epoch": 1,
        "key": KEY,
        "state": PooledState.STARTING,
        "created_at": at,
    }
    return PooledMachine(**{**fields, **changes})


async def succeed(
    store: Store,
    operation: Operation,
    *,
    at: datetime = START,
    taken_at: datetime | None = None,
    chunks: bytes = bytes(32),
) -> Sandbox:
    """Let an operation succeed; the snapshot that it makes, if it makes one, is of `taken_at` and needs `chunks`."""
    made = await store.snapshots.find(operation.snapshot_id or "")
    published = None
    if operation.kind in MAKES_SNAPSHOT and made is not None and made.manifest is None:
        await store.snapshots.pin(made.id, chunks, now=at)
        published = publication(made.id, taken_at=taken_at or at)
    outcome = Outcome(status=Status.SUCCEEDED, at=at, published=published)
    ended, _ = await store.operations.finish(operation, outcome)
    return ended


def publication(snapshot_id: SnapshotId, *, taken_at: datetime = START) -> Published:
    """Return what the last transaction of an operation writes of its snapshot."""
    return Published(
        snapshot_id=snapshot_id,
        manifest=snapshot_id.encode().hex(),
        bytes_read=300,
        bytes_new=20,
        bytes_uploaded=1,
        taken_at=taken_at,
    )

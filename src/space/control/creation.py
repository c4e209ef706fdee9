"""The rows of a sandbox that is to be: from a template, from a snapshot, or as the child of a fork."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from space.control.audit import entry_for
from space.control.identity import new_id
from space.core.account import Call
from space.core.errors import InvalidRequest
from space.core.ids import NodeId, OperationId, SandboxId
from space.core.lifecycle import Kind, State
from space.core.operation import Operation, Status
from space.core.pool import PoolKey
from space.core.ports import Clock
from space.core.sandbox import AutoLifecycle, Resources, Sandbox, SandboxSpec
from space.core.snapshot import Snapshot
from space.core.store import Change, Creation, Lease, Room

_DEFAULT = Resources()


def from_template(
    call: Call,
    spec: SandboxSpec,
    *,
    digest: str,
    runtime: str,
    node_id: NodeId,
    clock: Clock,
    now: datetime,
    lease: Lease,
    room: Room,
    default_max_sandboxes: int | None,
) -> Creation:
    """Return a create that this server drives; a warm machine of its kind serves it, if there is one."""
    sandbox, operation = _rows(call, spec, digest=digest, runtime=runtime, node_id=node_id, clock=clock, now=now)
    return Creation(
        sandbox=sandbox,
        operation=replace(
            operation,
            status=Status.RUNNING,
            attempt=1,
            lease_owner=lease.owner,
            lease_until=lease.until,
            started_at=now,
        ),
        audit=entry_for(call, now, target=sandbox.id, template=spec.template, runtime=runtime),
        idempotency=call.idempotency,
        default_max_sandboxes=default_max_sandboxes,
        room=room,
        pool=PoolKey(template_digest=digest, runtime=runtime, resources=spec.resources),
    )


def from_snapshot(creation: Creation, snapshot: Snapshot) -> Creation:
    """Let it go on from a moment of another sandbox, which is its own last durable state from the beginning."""
    return replace(
        creation,
        sandbox=replace(creation.sandbox, snapshot_id=snapshot.id, restorable=True),
        operation=replace(creation.operation, snapshot_id=snapshot.id),
        pool=None,
    )


def spec_from(snapshot: Snapshot, spec: SandboxSpec) -> SandboxSpec:
    """Return what is asked for, as the snapshot allows it: its memory has the size and the runtime that it has."""
    if spec.resources not in (_DEFAULT, snapshot.resources):
        raise InvalidRequest(
            "a sandbox starts from a snapshot with the snapshot's resources; leave them out", field="resources"
        )
    if spec.runtime not in (None, snapshot.runtime):
        raise InvalidRequest(
            f"this snapshot starts only with runtime {snapshot.runtime}; leave runtime out", field="runtime"
        )
    return replace(spec, resources=snapshot.resources, runtime=snapshot.runtime)


def child(
    call: Call,
    source: Sandbox,
    fork: Change,
    *,
    clock: Clock,
    metadata: Mapping[str, str] | None,
    env: Mapping[str, str] | None,
    auto_lifecycle: AutoLifecycle | None,
    node_id: NodeId,
    room: Room,
    default_max_sandboxes: int | None,
) -> Creation:
    """Return a child of `source`; what is not given it takes over.  Its start waits for the fork's end."""
    spec = SandboxSpec(
        template=source.template,
        runtime=source.runtime,
        resources=source.resources,
        env=source.env if env is None else env,
        metadata=source.metadata if metadata is None else metadata,
        auto_lifecycle=auto_lifecycle or source.auto_lifecycle,
        secure_ports=source.secure_ports,
    )
    digest, runtime = source.template_digest, source.runtime
    sandbox, operation = _rows(call, spec, digest=digest, runtime=runtime, node_id=node_id, clock=clock, now=fork.at)
    return Creation(
        sandbox=sandbox,
        operation=replace(operation, waits_for=fork.operation_id),
        audit=entry_for(call, fork.at, target=sandbox.id, source=source.id),
        default_max_sandboxes=default_max_sandboxes,
        room=room,
    )


def _rows(
    call: Call, spec: SandboxSpec, *, digest: str, runtime: str, node_id: NodeId, clock: Clock, now: datetime
) -> tuple[Sandbox, Operation]:
    who = call.principal
    lifetime = spec.auto_lifecycle.max_lifetime_seconds
    operation_id = OperationId(new_id("ops", clock))
    sandbox = Sandbox(
        id=SandboxId(new_id("sbx", clock)),
        project_id=who.project_id,
        template=spec.template,
        template_digest=digest,
        runtime=runtime,
        resources=spec.resources,
        env=spec.env,
        metadata=spec.metadata,
        auto_lifecycle=spec.auto_lifecycle,
        secure_ports=spec.secure_ports,
        state=State.PENDING,
        version=1,
        generation=1,
        held_by=operation_id,
        held_kind=Kind.CREATE,
        node_id=node_id,
        reason=None,
        restorable=False,
        created_by=who.id,
        created_at=now,
        started_at=None,
        last_active_at=now,
        expires_at=None if lifetime is None else now + timedelta(seconds=lifetime),
        deleted_at=None,
    )
    fields: dict[str, Any] = {"id": operation_id, "kind": Kind.CREATE, "generation": 1, "status": Status.QUEUED}
    return sandbox, Operation(project_id=who.project_id, sandbox_id=sandbox.id, created_at=now, **fields)

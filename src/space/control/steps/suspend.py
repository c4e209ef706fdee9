"""Steps that make a moment of a machine last: for a suspend, a snapshot, or the children of a fork.

A suspended sandbox has no machine: it is a moment already, and there is nothing to do but say which.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from space.control.steps.step import Progress, StepContext
from space.core.errors import FailedPrecondition
from space.core.lifecycle import Kind
from space.core.operation import Operation
from space.core.snapshot import Published, Snapshot


async def checkpoint_machine(context: StepContext) -> Progress | None:
    """Write the moment to the node's disk; a suspend leaves the machine stopped, so that nothing is lost after it."""
    if context.order is None:
        return None
    plan = await context.node.checkpoint(context.machine, context.order)
    progress: dict[str, Any] = {"bytes_read": plan.bytes_read, "bytes_new": plan.bytes_new}
    if plan.taken_at is not None:
        progress["taken_at"] = plan.taken_at.isoformat()
    if plan.checkpoint_ms is not None:
        progress["checkpoint_ms"] = plan.checkpoint_ms
    return progress


async def pin_chunks(context: StepContext) -> None:
    """Keep the collector from what the moment needs, before it is looked up what of it exists."""
    if context.order is None or context.pin is None:
        return
    plan = await context.node.checkpoint(context.machine, context.order)  # it was made: this only tells of it again
    await context.pin(plan.chunks)


async def upload_snapshot(context: StepContext) -> Progress | None:
    """Bring what the object store lacks into it; afterwards the moment may be published."""
    if context.order is None:
        return _as_it_is(context.rests_in) if context.operation.kind is Kind.SNAPSHOT else None
    result = await context.node.upload(context.order)
    return {
        "manifest": result.manifest,
        "bytes_read": result.bytes_read,
        "bytes_new": result.bytes_new,
        "bytes_uploaded": result.bytes_uploaded,
    }


def published(operation: Operation) -> Published | None:
    """Return what these steps brought into the object store; None if it was not they who brought it."""
    progress: Mapping[str, Any] = operation.progress
    if operation.snapshot_id is None or "manifest" not in progress:
        return None
    taken_at = progress.get("taken_at")
    return Published(
        snapshot_id=operation.snapshot_id,
        manifest=progress["manifest"],
        bytes_read=progress["bytes_read"],
        bytes_new=progress["bytes_new"],
        bytes_uploaded=progress["bytes_uploaded"],
        taken_at=None if taken_at is None else datetime.fromisoformat(taken_at),
    )


def _as_it_is(snapshot: Snapshot | None) -> Progress:
    if snapshot is None or snapshot.manifest is None:
        raise FailedPrecondition("the sandbox is suspended, and its snapshot is not there")
    taken_at = None if snapshot.taken_at is None else snapshot.taken_at.isoformat()
    return {
        "manifest": snapshot.manifest,
        "bytes_read": snapshot.bytes_read,
        "bytes_new": 0,
        "bytes_uploaded": 0,
        "taken_at": taken_at,
    }

"""What the steps of an operation need to know, gathered from the store before the first of them runs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from space.control.keys import ProjectKeys
from space.control.steps.step import StepContext
from space.core.errors import FailedPrecondition, Unavailable, Unsupported
from space.core.ids import ProjectId, SnapshotId
from space.core.lifecycle import Kind, State
from space.core.operation import Operation
from space.core.ports import Clock, NodeClient
from space.core.sandbox import Sandbox
from space.core.snapshot import Snapshot, SnapshotOrder, SnapshotRef, SnapshotState
from space.core.store import Store

MAKES_SNAPSHOT = frozenset({Kind.SUSPEND, Kind.FORK, Kind.SNAPSHOT})
_COLLECTION_SECONDS = 30.0  # for which pins wait: collections last less than a second, and their lease two minutes
_COLLECTION_POLL_SECONDS = 0.1
_STARTS_FROM_ONE = frozenset({Kind.CREATE, Kind.WAKE, Kind.RECOVER})


class Contexts:
    """Makes contexts; opens project keys only where a snapshot is made or read."""

    def __init__(self, store: Store, node: NodeClient, clock: Clock, keys: ProjectKeys | None) -> None:
        self._store = store
        self._node = node
        self._clock = clock
        self._keys = keys

    def bare(self, operation: Operation, sandbox: Sandbox) -> StepContext:
        """Return what is known without asking: enough to undo what an operation did."""
        return StepContext(sandbox=sandbox, operation=operation, node=self._node)

    async def full(self, operation: Operation, sandbox: Sandbox) -> StepContext:
        """Return all that the steps need.

        Raises:
            FailedPrecondition: the snapshot that it starts from is not there.
            Unavailable: the project's key does not open.
        """
        context = self.bare(operation, sandbox)
        if operation.kind in MAKES_SNAPSHOT:
            return await self._making(context)
        if operation.kind in _STARTS_FROM_ONE and sandbox.state is not State.PAUSED:
            restore = await self._restore(operation)
            return replace(context, restore=restore)
        return context

    async def _making(self, context: StepContext) -> StepContext:
        sandbox, operation = context.sandbox, context.operation
        latest = await self._ready(sandbox.snapshot_id)
        if sandbox.state is State.SUSPENDED:
            return replace(context, rests_in=latest)
        if operation.snapshot_id is None:
            raise AssertionError(f"operation {operation.id} has no row for its snapshot")
        snapshot_id = operation.snapshot_id
        key = await self._key(operation.project_id)
        order = SnapshotOrder(
            snapshot_id=snapshot_id,
            project_id=operation.project_id,
            key=key,
            base=None if latest is None else _ref(latest, key),
            freeze=operation.kind is Kind.SUSPEND,
            quiet_since=_instant(operation.request),
        )

        async def pin(chunks: Sequence[bytes]) -> None:
            await self._pin(snapshot_id, b"".join(chunks))

        return replace(context, order=order, pin=pin)

    async def _pin(self, snapshot_id: SnapshotId, chunks: bytes) -> None:
        """Pin, after a collection that holds pins off for a moment: a machine may stand still until this is done."""
        deadline = self._clock.monotonic() + _COLLECTION_SECONDS
        while True:
            try:
                return await self._store.snapshots.pin(snapshot_id, chunks, now=self._clock.now())
            except Unavailable:
                if self._clock.monotonic() >= deadline:
                    raise
            await self._clock.sleep(_COLLECTION_POLL_SECONDS)

    async def _restore(self, operation: Operation) -> SnapshotRef | None:
        if operation.snapshot_id is None:
            if operation.kind is Kind.CREATE:
                return None
            raise FailedPrecondition("there is no durable snapshot to start from")
        snapshot = await self._ready(operation.snapshot_id)
        if snapshot is None:
            raise FailedPrecondition("the snapshot to start from is not there any more")
        return _ref(snapshot, await self._key(operation.project_id))

    async def _ready(self, snapshot_id: SnapshotId | None) -> Snapshot | None:
        """Find a snapshot that one can start from."""
        snapshot = None if snapshot_id is None else await self._store.snapshots.find(snapshot_id)
        is_ready = snapshot is not None and snapshot.state is SnapshotState.READY and snapshot.manifest is not None
        return snapshot if is_ready else None

    async def _key(self, project_id: ProjectId) -> bytes:
        if self._keys is None:
            raise Unsupported("this server keeps no snapshots", feature="snapshots")
        return await self._keys.get(project_id)


def _ref(snapshot: Snapshot, key: bytes) -> SnapshotRef:
    return SnapshotRef(
        snapshot_id=snapshot.id, project_id=snapshot.project_id, manifest=snapshot.manifest or "", key=key
    )


def _instant(request: Mapping[str, Any]) -> datetime | None:
    text = request.get("quiet_since")
    return None if text is None else datetime.fromisoformat(text)

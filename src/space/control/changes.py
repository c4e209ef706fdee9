"""Asks for changes of sandboxes: checks what can be known before, records, and hands what begins to the worker."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from space.control.audit import entry_for
from space.control.contexts import MAKES_SNAPSHOT
from space.control.identity import new_id
from space.control.operations import Worker
from space.control.placement import require_capable
from space.control.pools import Pools
from space.core.account import Call
from space.core.errors import CapacityUnavailable
from space.core.ids import OperationId, SnapshotId
from space.core.lifecycle import Kind
from space.core.operation import Operation
from space.core.ports import Clock, NodeClient
from space.core.sandbox import Sandbox
from space.core.snapshot import Purpose, Snapshot
from space.core.store import Change, Changed, Creation, Fork, Forked, Room, Store

_PURPOSES: Mapping[Kind, Purpose] = {
    Kind.SUSPEND: Purpose.SUSPEND,
    Kind.FORK: Purpose.FORK,
    Kind.SNAPSHOT: Purpose.NAMED,
}


class Changes:
    """The one way in for every change but a create, whoever asks: a caller, the clock, or a request that wakes."""

    def __init__(
        self,
        store: Store,
        node: NodeClient,
        clock: Clock,
        worker: Worker,
        *,
        max_machines: int = 250,
        pools: Pools | None = None,
    ) -> None:
        self._store = store
        self._node = node
        self._clock = clock
        self._worker = worker
        self._max_machines = max_machines
        self._pools = pools

    async def ask(
        self,
        call: Call,
        sandbox: Sandbox,
        kind: Kind,
        *,
        overdue: str | None = None,
        snapshot_name: str | None = None,
        request: Mapping[str, Any] | None = None,
        guard: Callable[[], None] = lambda: None,
        **details: Any,
    ) -> Changed:
        """Record the change and begin it; `guard` may raise at the last moment, `details` go to the audit log.

        Raises `Unsupported`, and what `SandboxStore.change` raises.
        """
        change = await self.describe(
            call, sandbox, kind, overdue=overdue, snapshot_name=snapshot_name, request=request, **details
        )

        async def record() -> tuple[Changed, Operation | None]:
            guard()
            changed = await self._store.sandboxes.change(change)
            return changed, _to_drive(changed, change)

        try:
            return await self._worker.admit(record)
        except CapacityUnavailable:  # machines that wait for nobody in particular make way for one that is to wake
            if self._pools is None or not await self._pools.give_way(sandbox.resources.memory_mib):
                raise
            return await self._worker.admit(record)

    async def fork(self, change: Change, children: Sequence[Creation]) -> Forked:
        """Record a fork with its children, and begin it.  Its row names those that were asked for, made or not."""
        names = [{"sandbox_id": child.sandbox.id, "operation_id": child.operation.id} for child in children]
        fork = Fork(change=replace(change, request={"children": names}), children=children)

        async def record() -> tuple[Forked, Operation | None]:
            forked = await self._store.sandboxes.fork(fork)
            return forked, _to_drive(forked.changed, change)

        return await self._worker.admit(record)

    async def describe(
        self,
        call: Call,
        sandbox: Sandbox,
        kind: Kind,
        *,
        overdue: str | None = None,
        snapshot_name: str | None = None,
        request: Mapping[str, Any] | None = None,
        **details: Any,
    ) -> Change:
        """Return what is to be recorded.  Raises `Unsupported` if the sandbox's runtime cannot do it."""
        facts = await self._node.facts()
        require_capable([facts], sandbox.runtime, kind)
        now = self.now()
        return Change(
            kind=kind,
            sandbox_id=sandbox.id,
            project_id=sandbox.project_id,
            operation_id=OperationId(new_id("ops", self._clock)),
            lease=self._worker.lease(),
            at=now,
            audit=entry_for(call, now, target=sandbox.id, **details),
            idempotency=call.idempotency,
            overdue=overdue,
            request={} if request is None else request,
            room=Room(memory_mib=facts.memory_mib, machines=self._max_machines),
            snapshot=self._snapshot(call, sandbox, kind, snapshot_name, now) if kind in MAKES_SNAPSHOT else None,
        )

    def now(self) -> datetime:
        """The time as the store keeps it: in whole milliseconds, so that what was made equals what is read."""
        now = self._clock.now().astimezone(UTC)
        return now.replace(microsecond=now.microsecond // 1000 * 1000)

    def _snapshot(self, call: Call, sandbox: Sandbox, kind: Kind, name: str | None, now: datetime) -> Snapshot:
        return Snapshot(
            id=SnapshotId(new_id("snp", self._clock)),
            project_id=sandbox.project_id,
            sandbox_id=sandbox.id,
            generation=sandbox.generation,  # the store knows better, should it change meanwhile
            purpose=_PURPOSES[kind],
            name=name,
            runtime=sandbox.runtime,
            template=sandbox.template,
            template_digest=sandbox.template_digest,
            resources=sandbox.resources,
            created_by=call.principal.id,
            created_at=now,
        )


def _to_drive(changed: Changed, change: Change) -> Operation | None:
    """Return the operation if this request has begun it."""
    is_ours = changed.operation.id == change.operation_id and not changed.operation.status.is_final
    return changed.operation if is_ours else None

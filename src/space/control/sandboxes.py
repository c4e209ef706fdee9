"""Sandboxes as callers see them: admit a change, record it, hand it to the operation worker."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from space.control import creation
from space.control.access import holder_of, own_sandbox
from space.control.audit import entry_for
from space.control.changes import Changes
from space.control.operations import Worker
from space.control.placement import choose_node, choose_runtime
from space.control.pools import Pools
from space.control.snapshots import Snapshots
from space.core.account import Call, Principal
from space.core.errors import CapacityUnavailable, FailedPrecondition, InvalidRequest, NotFound, PermissionDenied
from space.core.event import Event
from space.core.ids import SandboxId
from space.core.lifecycle import Kind, State, admit
from space.core.node import NodeFacts
from space.core.operation import Operation
from space.core.pool import PoolKey
from space.core.ports import Clock, NodeClient, Templates
from space.core.sandbox import AutoLifecycle, Resources, Sandbox, SandboxSpec
from space.core.snapshot import Snapshot
from space.core.store import Changed, Creation, Forked, Page, Room, SandboxFilter, Store
from space.core.template import Template

__all__ = ["MAX_CHILDREN", "Page", "SandboxFilter", "Sandboxes"]

MAX_CHILDREN = 100  # of one fork


class Sandboxes:
    """The calls on sandboxes.  The server has checked the caller's scopes; projects and quotas are checked here."""

    def __init__(
        self,
        store: Store,
        node: NodeClient,
        templates: Templates,
        clock: Clock,
        worker: Worker,
        *,
        runtime: str | None = None,
        max_machines: int = 250,
        default_quota_sandboxes: int | None = None,
        pools: Pools | None = None,
    ) -> None:
        self._store = store
        self._node = node
        self._templates = templates
        self._clock = clock
        self._worker = worker
        self.changes = Changes(store, node, clock, worker, max_machines=max_machines, pools=pools)
        self._snapshots = Snapshots(store, clock)
        self._runtime = runtime
        self._max_machines = max_machines
        self._default_quota_sandboxes = default_quota_sandboxes
        self._pools = pools

    async def create(self, call: Call, spec: SandboxSpec) -> tuple[Sandbox, Operation]:
        """Record a sandbox and start bringing it up: from a template, or from a snapshot if it names one.

        Raises `NotFound` for what it starts from, `Unsupported` for the runtime, `CapacityUnavailable`,
        `LimitExceeded`.
        """
        origin = await self._snapshots.origin(call.principal, spec.template)
        try:
            return await self._create(call, spec, origin)
        except CapacityUnavailable:  # machines that wait for nobody in particular make way
            size = spec.resources if origin is None else origin.resources
            if not await self._make_room(call.principal, size):
                raise
            return await self._create(call, spec, origin)

    async def get(self, who: Principal, sandbox_id: str) -> Sandbox:
        """Return a sandbox of the caller's project; deleted ones for as long as they are kept."""
        return await own_sandbox(self._store, who, sandbox_id)

    async def list(self, who: Principal, where: SandboxFilter, *, limit: int, cursor: str | None) -> Page[Sandbox]:
        """Page through the project's sandboxes in the order in which they were made."""
        return await self._store.sandboxes.list(who.project_id, where, limit=limit, cursor=cursor)

    # Changes.  Each raises `NotFound`, `OperationInProgress`, `InvalidTransition` and, where the runtime cannot do it,
    # `Unsupported`.  The goal that is reached already succeeds, and the one that is under way is joined.

    async def delete(self, call: Call, sandbox_id: str) -> Operation:
        """Delete; always wins over what is under way.  What is deleted already succeeds."""
        return (await self._change(call, sandbox_id, Kind.DELETE)).operation

    async def pause(self, call: Call, sandbox_id: str) -> Changed:
        """Stop it where it is; its memory stays on the node and does not outlive that."""
        return await self._change(call, sandbox_id, Kind.PAUSE)

    async def suspend(self, call: Call, sandbox_id: str) -> Changed:
        """Save it durably and free its machine."""
        return await self._change(call, sandbox_id, Kind.SUSPEND)

    async def wake(self, call: Call, sandbox_id: str) -> Changed:
        """Let it go on where it was paused or suspended."""
        return await self._change(call, sandbox_id, Kind.WAKE)

    async def recover(self, call: Call, sandbox_id: str) -> Changed:
        """Bring a failed sandbox back from its last durable state.  `FailedPrecondition` if there is none."""
        sandbox = await self.get(call.principal, sandbox_id)
        if sandbox.state is State.FAILED and not sandbox.restorable:
            raise FailedPrecondition(
                "the sandbox has no durable state to recover from; it can only be deleted", current_state="failed"
            )
        return await self.changes.ask(call, sandbox, Kind.RECOVER)

    async def snapshot(self, call: Call, sandbox_id: str, name: str | None) -> Changed:
        """Save this moment until somebody deletes it; the sandbox goes on.  The operation names the snapshot."""
        sandbox = await self.get(call.principal, sandbox_id)
        return await self.changes.ask(call, sandbox, Kind.SNAPSHOT, snapshot_name=name, name=name)

    async def fork(
        self,
        call: Call,
        sandbox_id: str,
        count: int = 1,
        metadata: Mapping[str, str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        auto_lifecycle: AutoLifecycle | None = None,
    ) -> Forked:
        """Make children that go on from this moment; what is not given they take over from their source.

        Raises also what is wrong with the first child if there would be none.
        """
        if not 1 <= count <= MAX_CHILDREN:
            raise InvalidRequest(f"count is 1 to {MAX_CHILDREN}", field="count", limit=MAX_CHILDREN)
        source = await self.get(call.principal, sandbox_id)
        await self._check_may_fork(call.principal, source)
        change = await self.changes.describe(call, source, Kind.FORK, count=count)
        admit(Kind.FORK, source.state, held_by=holder_of(source))  # before anything makes way for it
        facts = await self._node.facts()
        if facts.memory_available_mib < count * source.resources.memory_mib:
            await self._make_room(call.principal, source.resources, count=count)
        children = [
            creation.child(
                call,
                source,
                change,
                clock=self._clock,
                metadata=metadata,
                env=env,
                auto_lifecycle=auto_lifecycle,
                node_id=facts.id,
                room=self._room(facts),
                default_max_sandboxes=self._default_quota_sandboxes,
            )
            for _ in range(count)
        ]
        return await self.changes.fork(change, children)

    # Snapshots

    async def list_snapshots(
        self, who: Principal, *, sandbox_id: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[Snapshot]:
        """Page through the project's snapshots that were asked for, oldest first."""
        return await self._snapshots.list(who, sandbox_id=sandbox_id, limit=limit, cursor=cursor)

    async def get_snapshot(self, who: Principal, snapshot_id: str) -> Snapshot:
        """Return a snapshot of the caller's project, whatever it was made for."""
        return await self._snapshots.get(who, snapshot_id)

    async def delete_snapshot(self, call: Call, snapshot_id: str) -> None:
        """Let a snapshot go that was asked for; raises `FailedPrecondition` while a sandbox needs it."""
        await self._snapshots.delete(call, snapshot_id)

    # The rest

    async def update(
        self, call: Call, sandbox_id: str, *, metadata: Mapping[str, str] | None, auto_lifecycle: AutoLifecycle | None
    ) -> Sandbox:
        """Replace what is given."""
        await self.get(call.principal, sandbox_id)
        now = self._now()
        return await self._store.sandboxes.update(
            SandboxId(sandbox_id),
            call.principal.project_id,
            at=now,
            audit=entry_for(call, now, target=sandbox_id),
            metadata=metadata,
            auto_lifecycle=auto_lifecycle,
            idempotency=call.idempotency,
        )

    async def extend(self, call: Call, sandbox_id: str, *, seconds: int) -> Sandbox:
        """Let it live for `seconds` from now on; never shortens, and what has no limit keeps none."""
        await self.get(call.principal, sandbox_id)
        now = self._now()
        return await self._store.sandboxes.update(
            SandboxId(sandbox_id),
            call.principal.project_id,
            at=now,
            audit=entry_for(call, now, target=sandbox_id, seconds=seconds),
            extend_seconds=seconds,
            idempotency=call.idempotency,
        )

    async def events(self, who: Principal, sandbox_id: str, *, after: int, limit: int) -> Sequence[Event]:
        """Return the timeline after `after`, oldest first."""
        await self.get(who, sandbox_id)
        return await self._store.events.read(sandbox_id, after=after, limit=limit)

    async def wait_event(self, sandbox_id: str, *, after: int, seconds: float) -> None:
        """Return once there is an event after `after`, or after `seconds`.  The caller has checked the project."""
        with self._store.watch(sandbox_id) as watch:
            if not await self._store.events.read(sandbox_id, after=after, limit=1):
                await watch.wait(seconds)

    # Inside

    async def _change(self, call: Call, sandbox_id: str, kind: Kind) -> Changed:
        return await self.changes.ask(call, await self.get(call.principal, sandbox_id), kind)

    async def _create(self, call: Call, spec: SandboxSpec, origin: Snapshot | None) -> tuple[Sandbox, Operation]:
        made = await self._creation(call, spec, origin)

        async def record() -> tuple[Sandbox, Operation]:
            return await self._store.sandboxes.create(made), made.operation

        sandbox = await self._worker.admit(record)
        if self._pools is not None:
            self._pools.claimed(sandbox)
        return sandbox, made.operation

    async def _creation(self, call: Call, spec: SandboxSpec, origin: Snapshot | None) -> Creation:
        if origin is None:
            digest = (await self._template(call.principal, spec.template)).digest
        else:
            spec, digest = creation.spec_from(origin, spec), origin.template_digest
        facts = [await self._node.facts()]
        runtime = choose_runtime(facts, wanted=spec.runtime, default=self._runtime)
        key = PoolKey(template_digest=digest, runtime=runtime, resources=spec.resources)
        node = choose_node(
            facts,
            runtime=runtime,
            resources=spec.resources,
            max_machines=self._max_machines,
            is_warm=origin is None and self._pools is not None and self._pools.may_serve(key),
        )
        made = creation.from_template(
            call,
            spec,
            digest=digest,
            runtime=runtime,
            node_id=node.id,
            clock=self._clock,
            now=self._now(),
            lease=self._worker.lease(),
            room=self._room(node),
            default_max_sandboxes=self._default_quota_sandboxes,
        )
        return made if origin is None else creation.from_snapshot(made, origin)

    async def _template(self, who: Principal, reference: str) -> Template:
        """Find a template that the caller may use; one that it may not use is refused whether it exists or not."""
        try:
            template = await self._templates.resolve(reference)
            names = {reference, template.name, template.digest}
        except NotFound:
            if who.templates is None or reference in who.templates:
                raise
            names = set()
        _check_may_create(who, reference, names)
        return template

    async def _check_may_fork(self, who: Principal, source: Sandbox) -> None:
        """Raise `PermissionDenied` for a source that the caller could not have created itself."""
        if who.templates is None:
            return
        names = {source.template, source.template_digest}
        with suppress(NotFound):  # a source that was made from a snapshot bears that one's id
            names.add((await self._templates.resolve(source.template_digest)).name)
        _check_may_create(who, source.template, names)

    async def _make_room(self, who: Principal, size: Resources, *, count: int = 1) -> bool:
        """Let machines that wait for nobody make way, for no more sandboxes than the project may have."""
        if self._pools is None:
            return False
        allowed = await self._store.sandboxes.quota_left(
            who.project_id, size, at=self._now(), default_max_sandboxes=self._default_quota_sandboxes
        )
        wanted = min(count, allowed)
        return wanted > 0 and await self._pools.give_way(wanted * size.memory_mib)

    def _room(self, node: NodeFacts) -> Room:
        return Room(memory_mib=node.memory_mib, machines=self._max_machines)

    def _now(self) -> datetime:
        return self.changes.now()


def _check_may_create(who: Principal, reference: str, names: Collection[str]) -> None:
    """Raise `PermissionDenied` unless the caller's token may create from what goes by these names."""
    if who.templates is not None and who.templates.isdisjoint(names):
        raise PermissionDenied(f"this token may not use template {reference[:128]}", field="template")

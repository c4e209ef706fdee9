"""Sandboxes as callers see them: admit a change, record it, hand it to the operation worker."""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from space.control.audit import entry_for
from space.control.operations import Worker
from space.control.placement import choose_node, choose_runtime
from space.control.steps import STEPS
from space.core.account import Call, Principal
from space.core.errors import NotFound, PermissionDenied, Unsupported
from space.core.event import Event
from space.core.ids import OperationId, SandboxId, make_id
from space.core.lifecycle import Kind, State
from space.core.operation import Operation, Status
from space.core.ports import Clock, NodeClient, Templates
from space.core.sandbox import AutoLifecycle, Sandbox, SandboxSpec
from space.core.store import Change, Changed, Creation, Page, Room, SandboxFilter, Store
from space.core.template import Template

__all__ = ["Page", "SandboxFilter", "Sandboxes"]


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
    ) -> None:
        self._store = store
        self._node = node
        self._templates = templates
        self._clock = clock
        self._worker = worker
        self._runtime = runtime
        self._max_machines = max_machines
        self._default_quota_sandboxes = default_quota_sandboxes

    async def create(self, call: Call, spec: SandboxSpec) -> tuple[Sandbox, Operation]:
        """Record a sandbox and start bringing it up.

        Raises `NotFound` for the template, `Unsupported` for the runtime, `CapacityUnavailable`, `LimitExceeded`.
        """
        creation = await self._creation(call, spec)

        async def record() -> tuple[Creation, Operation]:
            await self._store.sandboxes.create(creation)
            return creation, creation.operation

        await self._worker.admit(record)
        return creation.sandbox, creation.operation

    async def get(self, who: Principal, sandbox_id: str) -> Sandbox:
        """Return a sandbox of the caller's project; deleted ones for as long as they are kept."""
        sandbox = await self._store.sandboxes.find(sandbox_id)
        if sandbox is None or sandbox.project_id != who.project_id:
            raise NotFound(f"no sandbox {sandbox_id[:64]}", id=sandbox_id[:64])
        return sandbox

    async def list(self, who: Principal, where: SandboxFilter, *, limit: int, cursor: str | None) -> Page[Sandbox]:
        """Page through the project's sandboxes in the order in which they were made."""
        return await self._store.sandboxes.list(who.project_id, where, limit=limit, cursor=cursor)

    async def delete(self, call: Call, sandbox_id: str) -> Operation:
        """Delete; always wins over what is under way.  What is deleted already succeeds."""
        return (await self.change(call, sandbox_id, Kind.DELETE)).operation

    async def change(self, call: Call, sandbox_id: str, kind: Kind) -> Changed:
        """Ask for a change of kind `kind`.

        Raises `NotFound`, `OperationInProgress`, `InvalidTransition`; `Unsupported` for a kind without steps.
        """
        await self.get(call.principal, sandbox_id)
        if kind not in STEPS:
            raise Unsupported(f"{kind} is not supported by this version", feature=str(kind))
        now = self._now()
        request = Change(
            kind=kind,
            sandbox_id=SandboxId(sandbox_id),
            project_id=call.principal.project_id,
            operation_id=OperationId(_new_id("ops", now)),
            lease=self._worker.lease(),
            at=now,
            audit=entry_for(call, now, target=sandbox_id),
            idempotency=call.idempotency,
        )

        async def record() -> tuple[Changed, Operation | None]:
            changed = await self._store.sandboxes.change(request)
            is_ours = changed.operation.id == request.operation_id and not changed.operation.status.is_final
            return changed, changed.operation if is_ours else None

        return await self._worker.admit(record)

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

    async def _template(self, who: Principal, reference: str) -> Template:
        """Find a template that the caller may use; one that it may not use is refused whether it exists or not."""
        try:
            template = await self._templates.resolve(reference)
            names = {reference, template.name, template.digest}
        except NotFound:
            if who.templates is None or reference in who.templates:
                raise
            names = set()
        if who.templates is not None and not who.templates & names:
            raise PermissionDenied(f"this token may not use template {reference[:128]}", field="template")
        return template

    async def _creation(self, call: Call, spec: SandboxSpec) -> Creation:
        who = call.principal
        template = await self._template(who, spec.template)
        facts = [await self._node.facts()]
        runtime = choose_runtime(facts, wanted=spec.runtime, default=self._runtime)
        node = choose_node(
            facts,
            runtime=runtime,
            resources=spec.resources,
            max_machines=self._max_machines,
        )
        now = self._now()
        lease = self._worker.lease()
        lifetime = spec.auto_lifecycle.max_lifetime_seconds
        operation_id = OperationId(_new_id("ops", now))
        sandbox = Sandbox(
            id=SandboxId(_new_id("sbx", now)),
            project_id=who.project_id,
            template=spec.template,
            template_digest=template.digest,
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
            node_id=node.id,
            reason=None,
            restorable=False,
            created_by=who.id,
            created_at=now,
            started_at=None,
            last_active_at=now,
            expires_at=None if lifetime is None else now + timedelta(seconds=lifetime),
            deleted_at=None,
        )
        operation = Operation(
            id=operation_id,
            kind=Kind.CREATE,
            project_id=who.project_id,
            sandbox_id=sandbox.id,
            generation=1,
            status=Status.RUNNING,
            attempt=1,
            lease_owner=lease.owner,
            lease_until=lease.until,
            created_at=now,
            started_at=now,
        )
        return Creation(
            sandbox=sandbox,
            operation=operation,
            audit=entry_for(call, now, target=sandbox.id, template=spec.template, runtime=runtime),
            idempotency=call.idempotency,
            default_max_sandboxes=self._default_quota_sandboxes,
            room=Room(memory_mib=node.memory_mib, machines=self._max_machines),
        )

    def _now(self) -> datetime:
        """The time as the store keeps it: in whole milliseconds, so that what was made equals what is read."""
        now = self._clock.now().astimezone(UTC)
        return now.replace(microsecond=now.microsecond // 1000 * 1000)


def _new_id(prefix: str, now: datetime) -> str:
    return make_id(prefix, unix_ms=int(now.timestamp() * 1000), randomness=os.urandom(10))

"""What happens because time passes: lifetimes end, idle sandboxes go, and what is over is forgotten."""

import os
from datetime import timedelta

import structlog

from space.control.activity import Activity
from space.control.operations import Worker
from space.core.command import ProcessState
from space.core.errors import NotFound, SpaceError, StaleVersion
from space.core.event import AuditEntry
from space.core.ids import OperationId, ProjectId, SandboxId, SessionId, make_id
from space.core.lifecycle import Kind
from space.core.operation import Operation
from space.core.ports import Clock, NodeClient
from space.core.store import Change, Changed, Store

log = structlog.get_logger()

PRINCIPAL = "system"  #: who the audit log says has deleted it
_BATCH = 100  # rows a round; what is left over comes in the next
_PROCESSES_AT_ONCE = 1000  # of one sandbox that are looked at for output


class Reaper:
    """Looks every few seconds for what is overdue."""

    def __init__(
        self,
        store: Store,
        node: NodeClient,
        clock: Clock,
        worker: Worker,
        *,
        activity: Activity | None = None,
        every_seconds: float = 5.0,
        keep_deleted_hours: float = 24,
    ) -> None:
        self._store = store
        self._node = node
        self._clock = clock
        self._worker = worker
        self._activity = activity
        self._every_seconds = every_seconds
        self._keep_deleted = timedelta(hours=keep_deleted_hours)
        self._printed: dict[SandboxId, int] = {}  # of idle sandboxes, at the last look

    async def run(self) -> None:
        """Reap until cancelled; what fails is tried again in the next round."""
        while True:
            try:
                await self.reap()
            except SpaceError as error:
                log.warning("reaper.failed", error=error.message)
            except Exception as error:
                log.error("reaper.failed", error=repr(error))
            await self._clock.sleep(self._every_seconds)

    async def reap(self) -> None:
        """Do one round."""
        await self._delete_overdue()
        now = self._clock.now()
        await self._store.sandboxes.purge(now - self._keep_deleted, limit=_BATCH)
        await self._store.accounts.purge(now)

    async def _delete_overdue(self) -> None:
        for sandbox_id, project_id, reason in await self._store.sandboxes.overdue(self._clock.now(), limit=_BATCH):
            if reason == "idle" and await self._is_in_use(sandbox_id):
                continue
            try:
                await self._delete(sandbox_id, project_id, reason)
            except (NotFound, StaleVersion):
                continue

    async def _is_in_use(self, sandbox_id: SandboxId) -> bool:
        """Whether there is newer activity than the row says: a request, or output since the last look."""
        if self._is_active(sandbox_id):
            await self._store.sandboxes.touch({sandbox_id: self._clock.now()})
            return True
        printed = await self._printed_bytes(sandbox_id)
        if printed is None or printed == self._printed.get(sandbox_id):
            self._printed.pop(sandbox_id, None)
            return False
        self._printed[sandbox_id] = printed
        await self._store.sandboxes.touch({sandbox_id: self._clock.now()})
        return True

    def _is_active(self, sandbox_id: SandboxId) -> bool:
        return self._activity is not None and self._activity.newest(sandbox_id) is not None

    async def _printed_bytes(self, sandbox_id: SandboxId) -> int | None:
        """Count what the running processes have printed; None if nothing runs."""
        running: list[SessionId] = []
        cursor: str | None = None
        while True:
            page = await self._store.processes.list(
                sandbox_id, ended_after=self._clock.now(), limit=_PROCESSES_AT_ONCE, cursor=cursor
            )
            running += [process.session_id for process in page.items if process.state is ProcessState.RUNNING]
            cursor = page.next_cursor
            if cursor is None:
                break
        statuses = [await self._node.session_status(session_id) for session_id in running]
        return sum(status.stdout_bytes + status.stderr_bytes for status in statuses if status) if running else None

    async def _delete(self, sandbox_id: SandboxId, project_id: ProjectId, reason: str) -> None:
        now = self._clock.now()
        operation_id = OperationId(make_id("ops", unix_ms=int(now.timestamp() * 1000), randomness=os.urandom(10)))
        entry = AuditEntry(
            project_id=project_id,
            principal=PRINCIPAL,
            action="deleteSandbox",
            target=sandbox_id,
            outcome="ok",
            request_id=operation_id,
            address=None,
            details={"reason": reason},
            at=now,
        )
        request = Change(
            kind=Kind.DELETE,
            sandbox_id=sandbox_id,
            project_id=project_id,
            operation_id=operation_id,
            lease=self._worker.lease(),
            at=now,
            audit=entry,
            overdue=reason,
        )

        async def record() -> tuple[Changed, Operation | None]:
            if reason == "idle" and self._is_active(sandbox_id):  # it was not when the round looked
                raise StaleVersion(f"sandbox {sandbox_id} is in use")
            changed = await self._store.sandboxes.change(request)
            return changed, changed.operation if changed.operation.id == operation_id else None

        await self._worker.admit(record)
        log.info("sandbox.reaped", sandbox=sandbox_id, reason=reason)

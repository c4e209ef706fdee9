"""What happens because time passes: lifetimes end, idle sandboxes come to rest, and what is over is forgotten."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from space.control.activity import Activity
from space.control.changes import Changes
from space.control.operations import Worker
from space.core.account import Call, Principal
from space.core.command import ProcessState
from space.core.errors import InvalidTransition, NotFound, OperationInProgress, SpaceError, StaleVersion, Unsupported
from space.core.event import Event
from space.core.ids import ProjectId, SandboxId, SessionId, TokenId
from space.core.lifecycle import Kind
from space.core.ports import Clock, NodeClient
from space.core.sandbox import OnIdle, Sandbox
from space.core.store import Store

log = structlog.get_logger()

PRINCIPAL = "system"  #: who the audit log says has done it
KEPT_RUNNING = "sandbox.kept_running"  #: the event of an idle sandbox whose runtime cannot do what was asked for
_BATCH = 100  # rows a round; what is left over comes in the next
_PROCESSES_AT_ONCE = 1000  # of one sandbox that are looked at for output
_EVENTS_AT_ONCE = 1000
_FIRST_PAUSE = 30.0  # after an idle sandbox could not be brought to rest; doubled each time
_LONGEST_PAUSE = 3600.0
_KINDS: Mapping[OnIdle, Kind] = {
    OnIdle.PAUSE: Kind.PAUSE,
    OnIdle.SUSPEND: Kind.SUSPEND,
    OnIdle.DELETE: Kind.DELETE,
}


@dataclass(frozen=True, slots=True)
class _Try:
    """An attempt to bring an idle sandbox to rest; if it is idle still, it has failed, or is about to."""

    at: datetime
    count: int
    last_active_at: datetime  #: of the sandbox then

    @property
    def until(self) -> datetime:
        """Not before then is it tried again."""
        return self.at + timedelta(seconds=min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self.count - 1, 10)))

    @property
    def is_forgotten_at(self) -> datetime:
        return self.until + (self.until - self.at)


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
        self._changes = Changes(store, node, clock, worker)
        self._activity = activity
        self._every_seconds = every_seconds
        self._keep_deleted = timedelta(hours=keep_deleted_hours)
        self._printed: dict[SandboxId, int] = {}  # of idle sandboxes, at the last look
        self._tries: dict[SandboxId, _Try] = {}

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
        await self._look_for_overdue()
        now = self._clock.now()
        await self._store.sandboxes.purge(now - self._keep_deleted, limit=_BATCH)
        await self._store.accounts.purge(now)

    async def _look_for_overdue(self) -> None:
        now = self._clock.now()
        self._tries = {key: value for key, value in self._tries.items() if now < value.is_forgotten_at}
        limit = _BATCH + len(self._tries)  # those that must wait do not keep the others out
        for sandbox_id, project_id, reason in await self._store.sandboxes.overdue(now, limit=limit):
            sandbox = await self._store.sandboxes.find(sandbox_id)
            if sandbox is None:
                continue
            if reason == "idle":
                await self._bring_to_rest(sandbox)
            else:
                await self._ask(sandbox, project_id, Kind.DELETE, reason)

    async def _bring_to_rest(self, sandbox: Sandbox) -> None:
        """Pause, suspend or delete an idle sandbox, unless somebody uses it or it failed a moment ago."""
        kind = _KINDS.get(sandbox.auto_lifecycle.on_idle)
        before = self._tries.get(sandbox.id)
        if before is not None and sandbox.last_active_at != before.last_active_at:
            before = None  # it was used since: that was another idleness
        if kind is None or (before is not None and self._clock.now() < before.until):
            return
        if await self._is_in_use(sandbox.id):
            return
        count = 1 if before is None else before.count + 1
        self._tries[sandbox.id] = _Try(self._clock.now(), count, sandbox.last_active_at)
        try:
            await self._ask(sandbox, sandbox.project_id, kind, "idle")
        except Unsupported as error:
            await self._keep_running(sandbox, kind, error)

    async def _ask(self, sandbox: Sandbox, project_id: ProjectId, kind: Kind, reason: str) -> None:
        def guard() -> None:
            if reason == "idle" and self._is_active(sandbox.id):  # it was not when the round looked
                raise StaleVersion(f"sandbox {sandbox.id} is in use")

        request = {"reason": reason}
        if kind is Kind.SUSPEND:  # the node knows of use that no row tells of, and looks again when it freezes
            idle = timedelta(seconds=sandbox.auto_lifecycle.idle_seconds)
            request["quiet_since"] = max(sandbox.last_active_at, self._clock.now() - idle).isoformat()
        call = Call(principal=_system(project_id), action=f"{kind}Sandbox", request_id=PRINCIPAL)
        try:
            await self._changes.ask(call, sandbox, kind, overdue=reason, request=request, guard=guard, reason=reason)
        except (NotFound, StaleVersion, OperationInProgress, InvalidTransition):
            return
        log.info("sandbox.reaped", sandbox=sandbox.id, kind=kind, reason=reason)

    async def _keep_running(self, sandbox: Sandbox, kind: Kind, error: Unsupported) -> None:
        """Tell the owner once why an idle sandbox stays as it is."""
        after = 0
        while events := await self._store.events.read(sandbox.id, after=after, limit=_EVENTS_AT_ONCE):
            if any(event.type == KEPT_RUNNING for event in events):
                return
            after = events[-1].seq
        event = Event(
            project_id=sandbox.project_id,
            sandbox_id=sandbox.id,
            operation_id=None,
            type=KEPT_RUNNING,
            data={"kind": kind, "message": error.message},
            at=self._clock.now(),
        )
        await self._store.events.append(event)
        log.warning("sandbox.kept_running", sandbox=sandbox.id, error=error.message)

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


def _system(project_id: ProjectId) -> Principal:
    return Principal(id=PRINCIPAL, token_id=TokenId(""), project_id=project_id, scopes=frozenset())

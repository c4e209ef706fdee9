"""The audit log: who changed what, and who was refused."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from space.core.account import Call, Principal, Scope
from space.core.errors import SpaceError
from space.core.event import AuditEntry
from space.core.ports import Clock
from space.core.store import AuditFilter, Page, Store

_PAGE = 500
_MAX_TEXT = 256  # of what callers choose: the log is kept for long, and readable


def entry_for(call: Call, at: datetime, *, target: str | None, outcome: str = "ok", **details: Any) -> AuditEntry:
    """Describe a call; `details` hold no secrets, no environment and no arguments of commands."""
    return AuditEntry(
        project_id=call.principal.project_id,
        principal=call.principal.id,
        action=call.action,
        target=None if target is None else target[:_MAX_TEXT],
        outcome=outcome,
        request_id=call.request_id,
        address=call.address,
        details={key: _bounded(value) for key, value in details.items() if value is not None},
        at=at,
    )


class Audit:
    """Appends what belongs to no transaction of its own, and reads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def record(self, entry: AuditEntry) -> None:
        """Append; returns once it is durable."""
        await self._store.audit.append(entry)

    async def refused(self, call: Call, error: SpaceError, *, target: str | None = None) -> None:
        """Append that an authenticated call was not allowed."""
        scope = error.details.get("scope")
        await self.record(entry_for(call, self._clock.now(), target=target, outcome=error.code, scope=scope))

    async def list(
        self, who: Principal, where: AuditFilter, *, limit: int = 100, cursor: str | None = None
    ) -> Page[AuditEntry]:
        """List newest first: all projects for an admin, one's own for others."""
        who.require(Scope.AUDIT_READ)
        if Scope.ADMIN not in who.scopes:
            if where.project_id not in (None, who.project_id):
                return Page(items=(), next_cursor=None)
            where = replace(where, project_id=who.project_id)
        return await self._store.audit.list(where, limit=limit, cursor=cursor)

    async def export(self, who: Principal, where: AuditFilter) -> AsyncIterator[AuditEntry]:
        """Yield all that match, newest first; memory does not grow with the log."""
        cursor: str | None = None
        while True:
            page = await self.list(who, where, limit=_PAGE, cursor=cursor)
            for entry in page.items:
                yield entry
            cursor = page.next_cursor
            if cursor is None:
                return


def _bounded(value: Any) -> Any:
    match value:
        case bool() | int() | float():
            return value
        case str():
            return str(value)[:_MAX_TEXT]
        case _:
            return repr(value)[:_MAX_TEXT] if not isinstance(value, list | tuple) else [_bounded(v) for v in value[:32]]

"""What the store does with the audit log."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from space.core.event import AuditEntry
from space.core.store.pages import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which audit entries to list; what is None does not matter."""

    project_id: str | None = None
    principal: str | None = None
    action: str | None = None
    target: str | None = None
    outcome: str | None = None  #: `ok`, an error code, or `refused` for any but `ok`
    after: datetime | None = None  #: inclusive
    before: datetime | None = None  #: exclusive


class AuditStore(Protocol):
    """The audit log."""

    async def append(self, *entries: AuditEntry) -> None: ...

    async def list(self, where: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditEntry]:
        """Page newest first; `InvalidRequest` for a cursor that is none."""
        ...

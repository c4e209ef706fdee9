"""Projects for tests."""

import contextlib
from datetime import datetime
from typing import Any

from space.core.account import Project
from space.core.errors import AlreadyExists
from space.core.event import AuditEntry
from space.core.ids import ProjectId
from space.core.store import Store


async def add_project(store: Store, project_id: ProjectId, *, name: str, at: datetime, **quotas: Any) -> None:
    """Add a project unless it is there."""
    entry = AuditEntry(
        project_id=project_id,
        principal="system",
        action="test",
        target=project_id,
        outcome="ok",
        request_id="test",
        address=None,
        details={},
        at=at,
    )
    with contextlib.suppress(AlreadyExists):
        await store.accounts.add_project(Project(id=project_id, name=name, created_at=at, **quotas), entry)

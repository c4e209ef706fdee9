"""Projects: who owns sandboxes, and how many."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from space.control.audit import entry_for
from space.control.identity import new_id
from space.core.account import Call, Principal, Project, Scope
from space.core.errors import InvalidRequest, NotFound
from space.core.ids import ProjectId
from space.core.ports import Clock
from space.core.store import Page, Store

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_MAX_QUOTA = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Limits of a project; None is no limit."""

    max_sandboxes: int | None = None
    max_vcpus: int | None = None
    max_memory_mib: int | None = None
    max_disk_mib: int | None = None
    max_creates_per_minute: int | None = None


QUOTA_NAMES = frozenset(asdict(Quotas()))


class Projects:
    """Changes are the admins'; others see their own project."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def create(self, call: Call, *, name: str, quotas: Quotas | None = None) -> Project:
        """Make a project; `AlreadyExists` if the name is taken."""
        call.principal.require(Scope.ADMIN)
        limits = asdict(quotas or Quotas())
        _check({"name": name, **limits})
        now = self._clock.now()
        project = Project(id=ProjectId(new_id("prj", self._clock)), name=name, created_at=now, **limits)
        audit = entry_for(call, now, target=project.id, name=name)
        await self._store.accounts.add_project(project, audit, idempotency=call.idempotency)
        return project

    async def list(self, who: Principal, *, limit: int = 100, cursor: str | None = None) -> Page[Project]:
        if Scope.ADMIN in who.scopes:
            return await self._store.accounts.list_projects(limit=limit, cursor=cursor)
        return Page(items=[await self.get(who, who.project_id)], next_cursor=None)

    async def get(self, who: Principal, project_id: str) -> Project:
        """Return a project; those of others are `NotFound`."""
        is_visible = Scope.ADMIN in who.scopes or project_id == who.project_id
        project = await self._store.accounts.find_project(project_id) if is_visible else None
        if project is None:
            raise NotFound(f"no project {project_id[:64]}", id=project_id[:64])
        return project

    async def update(self, call: Call, project_id: str, changes: Mapping[str, Any]) -> Project:
        """Change what is given; a quota of None is no limit.  What runs already stays, whatever the new quota."""
        call.principal.require(Scope.ADMIN)
        _check(changes)
        now = self._clock.now()
        audit = entry_for(call, now, target=project_id, **{key: str(value) for key, value in changes.items()})
        return await self._store.accounts.change_project(project_id, changes, audit)


def _check(fields: Mapping[str, Any]) -> None:
    for field, value in fields.items():
        if field == "name":
            if not isinstance(value, str) or _NAME.fullmatch(value) is None:
                raise InvalidRequest("name has 1 to 63 lower-case letters, digits and inner hyphens", field="name")
        elif field not in QUOTA_NAMES:
            raise InvalidRequest(f"a project has no field {field[:64]!r}", field=field[:64])
        elif value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_QUOTA
        ):
            raise InvalidRequest(f"{field} is 0 to {_MAX_QUOTA}, or null for no limit", field=field, limit=_MAX_QUOTA)

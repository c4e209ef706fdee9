"""What operators read and set: projects, the audit log, nodes, templates."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from space.server.schemas import WHOLE, Asked, Instant, Query, Shown, at_least_one
from space.server.v1.schemas.shared import Cursor, Limit

ProjectName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")]
Quota = Annotated[int, Field(ge=0, le=1_000_000_000), WHOLE]


class Quotas(Asked):
    """What a project may use; null is no limit."""

    max_sandboxes: Quota | None = None
    max_vcpus: Quota | None = None
    max_memory_mib: Quota | None = None
    max_disk_mib: Quota | None = None
    max_creates_per_minute: Quota | None = None


class ProjectCreate(Asked):
    """Asks for a project."""

    name: ProjectName
    quotas: Quotas = Quotas()


class ProjectUpdate(Asked):
    """Changes a project; what is left out stays, a quota of null lifts the limit."""

    model_config = at_least_one("name", "quotas")

    name: Annotated[ProjectName, Field(default_factory=str)]
    quotas: Annotated[Quotas, Field(default_factory=Quotas, json_schema_extra={"minProperties": 1})]

    @model_validator(mode="after")
    def _changes_something(self) -> "ProjectUpdate":
        if not self.changes:
            raise ValueError("give name or quotas")
        return self

    @property
    def changes(self) -> dict[str, object]:
        """What is to change, by the names of `core.account.Project`."""
        given = {name: getattr(self.quotas, name) for name in self.quotas.model_fields_set}
        return given | {"name": self.name} if "name" in self.model_fields_set else given


class ShownQuotas(Shown):
    """What a project may use; null is no limit."""

    max_sandboxes: int | None
    max_vcpus: int | None
    max_memory_mib: int | None
    max_disk_mib: int | None
    max_creates_per_minute: int | None


class Project(Shown):
    """Owns sandboxes and quotas."""

    id: str
    name: str
    quotas: ShownQuotas
    created_at: datetime


class ProjectPage(Shown):
    """A page of projects."""

    items: list[Project]
    next_cursor: str | None


class PageQuery(Query):
    """Chooses a page."""

    limit: Limit = 100
    cursor: Cursor = None


Word = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[!-~]+$")]


class AuditQuery(PageQuery):
    """Chooses entries of the audit log."""

    principal: Word | None = None
    action: Annotated[Word, Field(description="An operationId, e.g. `createSandbox`.")] | None = None
    target: Annotated[Word, Field(description="The id of what was changed.")] | None = None
    outcome: Annotated[Word, Field(description="`ok` or an error code.")] | None = None
    project: Annotated[str, Field(pattern=r"^prj[0-9a-v]{25}[048cgkos]$")] | None = None
    after: Instant | None = None
    before: Instant | None = None
    format: Annotated[
        Literal["page", "jsonl"], Field(description="`jsonl` exports all that match, a line each; so does `Accept`.")
    ] = "page"


class AuditEntry(Shown):
    """One call that changed something, or was refused."""

    seq: int
    project_id: str | None
    principal: str
    action: str
    target: str | None
    outcome: str
    request_id: str
    address: str | None
    details: dict[str, object]
    at: datetime


class AuditPage(Shown):
    """A page of the audit log, newest first."""

    items: list[AuditEntry]
    next_cursor: str | None


class RuntimeShown(Shown):
    """What a runtime can do on a node; `reasons` explains each no."""

    runtime: str
    available: bool
    version: str | None
    pause: bool
    memory_snapshot: bool
    reasons: dict[str, str]


class Node(Shown):
    """A host of sandboxes."""

    id: str
    runtimes: list[RuntimeShown]
    vcpus: int
    memory_mib: int
    memory_available_mib: int
    disk_available_mib: int
    machines: int


class NodePage(Shown):
    """All nodes."""

    items: list[Node]
    next_cursor: str | None


class Template(Shown):
    """What a sandbox can be made from."""

    name: str
    tag: str
    digest: str
    user: str
    size_bytes: int
    created_at: datetime


class TemplatePage(Shown):
    """All templates of this host."""

    items: list[Template]
    next_cursor: str | None


class TemplateCreate(Asked):
    """Asks for a template; not supported yet."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]

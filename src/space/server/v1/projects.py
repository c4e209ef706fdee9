"""Projects and their quotas."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from space.control.idempotency import Linked
from space.control.projects import Quotas
from space.core.account import Project, Scope
from space.core.errors import AlreadyExists, NotFound
from space.server.answers import Json
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1 import examples
from space.server.v1.schemas import operators as forms
from space.server.v1.schemas.shared import ProjectIdPath

routes = Routes("projects")

NO_PROJECT = NotFound("there is no such project")
TAKEN = AlreadyExists("there is a project research", field="name")
QUOTAS = ("max_sandboxes", "max_vcpus", "max_memory_mib", "max_disk_mib", "max_creates_per_minute")


def _shown(row: Project) -> dict[str, Any]:
    quotas = {name: getattr(row, name) for name in QUOTAS}
    return {"id": row.id, "name": row.name, "quotas": quotas, "created_at": row.created_at}


def _created(row: Project) -> Response:
    return Json(_shown(row), 201, {"Location": f"/v1/projects/{row.id}"})


async def _replay(request: ApiRequest, linked: Linked, arguments: Mapping[str, Any]) -> Response:
    return _created(await request.services.projects.get(request.principal, linked.target_id))


@routes.add(
    "POST",
    "/v1/projects",
    rule=Rule(right=Scope.ADMIN, replay=_replay),
    document=Document(
        id="createProject",
        summary="Create a project",
        tag=routes.tag,
        requests={
            "unlimited": {"name": "research"},
            "with_quotas": {"name": "students", "quotas": {"max_sandboxes": 20, "max_creates_per_minute": 60}},
        },
        answers={
            201: Answer(
                description="The project.",
                model=forms.Project,
                headers={"Location": "Path of the project."},
                examples={"created": examples.PROJECT_SHOWN},
            )
        },
        raises=(TAKEN,),
    ),
)
async def create_project(request: ApiRequest, body: forms.ProjectCreate) -> Response:
    """Make a project."""
    quotas = Quotas(**{name: getattr(body.quotas, name) for name in QUOTAS})
    row = await request.services.projects.create(request.call, name=body.name, quotas=quotas)
    return _created(row)


@routes.add(
    "GET",
    "/v1/projects",
    rule=Rule(right=Scope.SANDBOXES_READ),
    document=Document(
        id="listProjects",
        summary="List projects",
        tag=routes.tag,
        description="All of them for an administrator, else one's own.",
        answers={
            200: Answer(
                description="A page of projects.",
                model=forms.ProjectPage,
                examples={"one": examples.page(examples.PROJECT_SHOWN)},
            )
        },
    ),
)
async def list_projects(request: ApiRequest, query: Annotated[forms.PageQuery, Query()]) -> Response:
    """List projects."""
    page = await request.services.projects.list(request.principal, limit=query.limit, cursor=query.cursor)
    return Json({"items": [_shown(row) for row in page.items], "next_cursor": page.next_cursor})


@routes.add(
    "GET",
    "/v1/projects/{project_id}",
    rule=Rule(right=Scope.SANDBOXES_READ),
    document=Document(
        id="getProject",
        summary="Get a project",
        tag=routes.tag,
        answers={
            200: Answer(description="The project.", model=forms.Project, examples={"research": examples.PROJECT_SHOWN})
        },
        raises=(NO_PROJECT,),
    ),
)
async def get_project(request: ApiRequest, project_id: ProjectIdPath) -> Response:
    """Show one project."""
    return Json(_shown(await request.services.projects.get(request.principal, project_id)))


@routes.add(
    "PATCH",
    "/v1/projects/{project_id}",
    rule=Rule(right=Scope.ADMIN),
    document=Document(
        id="updateProject",
        summary="Rename a project or set its quotas",
        tag=routes.tag,
        requests={"limit": {"quotas": {"max_sandboxes": 10}}, "lift": {"quotas": {"max_sandboxes": None}}},
        answers={
            200: Answer(description="The project.", model=forms.Project, examples={"changed": examples.PROJECT_SHOWN})
        },
        raises=(NO_PROJECT, TAKEN),
    ),
)
async def update_project(request: ApiRequest, project_id: ProjectIdPath, body: forms.ProjectUpdate) -> Response:
    """Change a project."""
    return Json(_shown(await request.services.projects.update(request.call, project_id, body.changes)))

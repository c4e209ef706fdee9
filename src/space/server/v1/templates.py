"""Templates: the ones that this host has; building others comes later."""

import re
from typing import Annotated, Any

from fastapi import Path, Query
from starlette.responses import Response

from space.core.account import Scope
from space.core.errors import InvalidRequest, NotFound, Unsupported
from space.core.template import Template
from space.server.answers import Json
from space.server.binding import Matches
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1 import examples
from space.server.v1.schemas import operators as forms
from space.server.v1.schemas.operations import Operation
from space.server.v1.schemas.shared import AT

routes = Routes("templates")

REFERENCE = r"^(sha256:[0-9a-f]{64}|[a-z0-9][a-z0-9._-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9._-]{0,63})?)$"
TemplatePath = Annotated[
    str,
    Path(
        description="`name`, `name:tag` or a digest.", pattern=REFERENCE, openapi_examples={"base": {"value": "base"}}
    ),
    Matches(re.compile(REFERENCE)),
]
TEMPLATE_CURSOR = re.compile(r"[a-z0-9][a-z0-9._-]*:[A-Za-z0-9_][A-Za-z0-9._-]*")
BASE = {
    "name": "base",
    "tag": "latest",
    "digest": examples.DIGEST,
    "user": "user",
    "size_bytes": 186_646_528,
    "created_at": AT,
}
UNSUPPORTED = Unsupported("building templates is not supported by this version", feature="template_builds")


def _shown(row: Template) -> dict[str, Any]:
    return {
        "name": row.name,
        "tag": row.tag,
        "digest": row.digest,
        "user": row.user,
        "size_bytes": row.size_bytes,
        "created_at": row.created_at,
    }


@routes.add(
    "GET",
    "/v1/templates",
    rule=Rule(right=Scope.TEMPLATES_READ),
    document=Document(
        id="listTemplates",
        summary="List templates",
        tag=routes.tag,
        answers={
            200: Answer(
                description="All templates.", model=forms.TemplatePage, examples={"built_in": examples.page(BASE)}
            )
        },
    ),
)
async def list_templates(request: ApiRequest, query: Annotated[forms.PageQuery, Query()]) -> Response:
    """List what sandboxes can be made from, in the order of their names."""
    rows = {f"{row.name}:{row.tag}": row for row in await request.services.templates.list()}
    if query.cursor is not None and not TEMPLATE_CURSOR.fullmatch(query.cursor):
        raise InvalidRequest("this cursor was not given out by this list", field="cursor")
    names = sorted(name for name in rows if query.cursor is None or name > query.cursor)
    shown = names[: query.limit]
    cursor = shown[-1] if len(names) > len(shown) else None
    return Json({"items": [_shown(rows[name]) for name in shown], "next_cursor": cursor})


@routes.add(
    "GET",
    "/v1/templates/{template}",
    rule=Rule(right=Scope.TEMPLATES_READ),
    document=Document(
        id="getTemplate",
        summary="Get a template",
        tag=routes.tag,
        answers={200: Answer(description="The template.", model=forms.Template, examples={"base": BASE})},
        raises=(NotFound("there is no template nosuch; GET /v1/templates lists them", template="nosuch"),),
    ),
)
async def get_template(request: ApiRequest, template: TemplatePath) -> Response:
    """Show what a name means."""
    return Json(_shown(await request.services.templates.resolve(template)))


@routes.add(
    "POST",
    "/v1/templates",
    rule=Rule(right=Scope.TEMPLATES_WRITE),
    document=Document(
        id="createTemplate",
        summary="Build a template",
        tag=routes.tag,
        description="Answers `unsupported` in this version.",
        requests={"named": {"name": "my-tools"}},
        answers={202: Answer(description="Once it is supported: the operation.", model=Operation)},
        raises=(UNSUPPORTED,),
    ),
)
async def create_template(request: ApiRequest, body: forms.TemplateCreate) -> Response:
    """Build a template."""
    raise Unsupported(UNSUPPORTED.message, feature="template_builds")

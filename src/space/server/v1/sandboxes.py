"""Sandboxes: create, list, get, change, delete, and their timeline."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from space.control.idempotency import Linked
from space.core.account import Scope
from space.core.errors import (
    CapacityUnavailable,
    Conflict,
    FailedPrecondition,
    LimitExceeded,
    NotFound,
    PermissionDenied,
    Unsupported,
)
from space.core.operation import Status
from space.core.sandbox import Sandbox as Row
from space.core.store import SandboxFilter
from space.server.answers import Json, dumps
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1 import examples, render
from space.server.v1.encoded import Encoded
from space.server.v1.schemas.operations import Operation
from space.server.v1.schemas.sandboxes import (
    Extension,
    Sandbox,
    SandboxAccepted,
    SandboxCreate,
    SandboxFields,
    SandboxListQuery,
    SandboxPage,
    SandboxUpdate,
    SelectedSandbox,
)
from space.server.v1.schemas.shared import SNAPSHOT, SandboxIdPath
from space.server.v1.waiting import applied, operation_answer, prefer_parameter, preferred_wait

routes = Routes("sandboxes")
encoded = Encoded()

LOCATION = {"Location": "Path of the sandbox."}
UNSUPPORTED_POLICY = Unsupported(
    "network policies other than denying everything are not supported yet", feature="network_policy"
)
NO_TEMPLATE = NotFound("there is no template nosuch; GET /v1/templates lists them", template="nosuch")
NO_SNAPSHOT = FailedPrecondition("the snapshot is still being uploaded; wait for its operation", snapshot_id=SNAPSHOT)


async def _replay_create(request: ApiRequest, linked: Linked, arguments: Mapping[str, Any]) -> Response:
    services = request.services
    operation = await services.operations.get(request.principal, linked.target_id)
    sandbox = await services.sandboxes.get(request.principal, operation.sandbox_id)
    content = {"sandbox": render.sandbox(sandbox), "operation": render.operation(operation)}
    return Json(content, linked.status or 202, {"Location": f"/v1/sandboxes/{sandbox.id}"})


@routes.add(
    "POST",
    "/v1/sandboxes",
    rule=Rule(right=Scope.SANDBOXES_WRITE, replay=_replay_create),
    document=Document(
        id="createSandbox",
        summary="Create a sandbox",
        tag=routes.tag,
        is_published=True,
        description=(
            "Recorded before it is answered. `template` is the only required field. From a snapshot's id it goes on "
            "where that was taken, with its processes; `resources` are then the snapshot's."
        ),
        requests={
            "smallest": {"template": "base"},
            "sized": {
                "template": "base",
                "resources": {"vcpus": 2, "memory_mib": 2048, "disk_mib": 8192},
                "env": {"API_BASE": "https://api.example.com"},
                "metadata": {"task": "42"},
            },
            "from_a_snapshot": {"template": SNAPSHOT},
            "short_lived": {
                "template": "base",
                "auto_lifecycle": {"idle_seconds": 600, "on_idle": "delete", "max_lifetime_seconds": 3600},
            },
        },
        parameters=(prefer_parameter("answer 201 once it runs"),),
        answers={
            201: Answer(
                description="It runs: `Prefer: wait` was in time.",
                model=SandboxAccepted,
                headers=LOCATION,
                examples={"running": {"sandbox": examples.SANDBOX_RUNNING, "operation": examples.OPERATION_SUCCEEDED}},
            ),
            202: Answer(
                description="Recorded; the operation starts it.",
                model=SandboxAccepted,
                headers=LOCATION,
                examples={"accepted": {"sandbox": examples.SANDBOX_CREATING, "operation": examples.OPERATION_RUNNING}},
            ),
        },
        raises=(
            NO_TEMPLATE,
            NO_SNAPSHOT,
            UNSUPPORTED_POLICY,
            Unsupported("egress profiles are not supported yet", feature="egress_profile"),
            Unsupported("the runtime firecracker is not available on this host", feature="firecracker"),
            PermissionDenied("this token may not create from the template secret-lab", template="secret-lab"),
            LimitExceeded("the project may hold 50 sandboxes; delete one first", quota="sandboxes", limit=50),
            CapacityUnavailable("no node has 512 MiB of memory free", memory_mib=512),
        ),
    ),
)
async def create_sandbox(request: ApiRequest, body: SandboxCreate) -> Response:
    """Record a sandbox and the operation that starts it."""
    services = request.services
    require_supported(body)
    seconds = preferred_wait(request)
    sandbox, operation = await services.sandboxes.create(request.call, body.to_core())
    headers = {"Location": f"/v1/sandboxes/{sandbox.id}", **applied(seconds)}
    status = 202
    if seconds:
        operation = await services.operations.wait(request.principal, operation.id, seconds=seconds)
        sandbox = await services.sandboxes.get(request.principal, sandbox.id)
        status = 201 if operation.status is Status.SUCCEEDED else 202
    return Json({"sandbox": render.sandbox(sandbox), "operation": render.operation(operation)}, status, headers)


def require_supported(body: SandboxCreate) -> None:
    """Refuse what needs the egress gateway."""
    if body.network_policy is not None and not body.network_policy.denies_everything:
        raise Unsupported(UNSUPPORTED_POLICY.message, feature="network_policy")
    if body.egress_profile is not None:
        raise Unsupported("egress profiles are not supported yet", feature="egress_profile")


@routes.add(
    "GET",
    "/v1/sandboxes",
    rule=Rule(right=Scope.SANDBOXES_READ),
    document=Document(
        id="listSandboxes",
        summary="List sandboxes",
        tag=routes.tag,
        is_published=True,
        description="Deleted ones are shown only with `state=deleted`. `metadata.KEY=VALUE` chooses by metadata.",
        answers={
            200: Answer(
                description="A page of sandboxes.",
                model=SandboxPage,
                examples={
                    "all": examples.page(examples.SANDBOX_RUNNING, cursor="c2J4MDZkMXE4"),
                    "selected_fields": examples.page({"id": examples.SANDBOX_RUNNING["id"], "state": "running"}),
                    "none": examples.page(),
                },
            )
        },
    ),
)
async def list_sandboxes(request: ApiRequest, query: Annotated[SandboxListQuery, Query()]) -> Response:
    """List the project's sandboxes."""
    where = SandboxFilter(
        state=query.state,
        template=query.template,
        runtime=query.runtime,
        metadata=query.metadata,
        created_after=query.created_after,
        created_before=query.created_before,
        newest_first=query.order == "desc",
    )
    page = await request.services.sandboxes.list(request.principal, where, limit=query.limit, cursor=query.cursor)
    selected = query.selected
    items = b",".join([encoded(row) if selected is None else dumps(_select(row, selected)) for row in page.items])
    return Json(b'{"items":[' + items + b'],"next_cursor":' + dumps(page.next_cursor) + b"}")


def _select(row: Row, selected: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in render.sandbox(row).items() if name in selected}


@routes.add(
    "GET",
    "/v1/sandboxes/{sandbox_id}",
    rule=Rule(right=Scope.SANDBOXES_READ),
    document=Document(
        id="getSandbox",
        summary="Get a sandbox",
        tag=routes.tag,
        is_published=True,
        answers={
            200: Answer(
                description="The sandbox.",
                model=SelectedSandbox,
                examples={
                    "running": examples.SANDBOX_RUNNING,
                    "suspended": examples.SANDBOX_SUSPENDED,
                    "failed": examples.SANDBOX_FAILED,
                },
            )
        },
    ),
)
async def get_sandbox(
    request: ApiRequest, sandbox_id: SandboxIdPath, query: Annotated[SandboxFields, Query()]
) -> Response:
    """Show one sandbox; a deleted one stays readable."""
    row = await request.services.sandboxes.get(request.principal, sandbox_id)
    return Json(encoded(row) if query.selected is None else _select(row, query.selected))


@routes.add(
    "DELETE",
    "/v1/sandboxes/{sandbox_id}",
    rule=Rule(right=Scope.SANDBOXES_WRITE),
    document=Document(
        id="deleteSandbox",
        summary="Delete a sandbox",
        tag=routes.tag,
        is_published=True,
        description="Always wins over what is under way. Deleting what is deleted succeeds.",
        parameters=(prefer_parameter("answer 200 once it is gone"),),
        answers={
            200: Answer(
                description="It is gone: `Prefer: wait` was in time.",
                model=Operation,
                headers={"Location": "Path of the operation."},
                examples={"gone": examples.OPERATION_SUCCEEDED | {"kind": "delete"}},
            ),
            202: Answer(
                description="Recorded; the operation ends the machine.",
                model=Operation,
                headers={"Location": "Path of the operation."},
                examples={"accepted": examples.OPERATION_DELETE},
            ),
        },
    ),
)
async def delete_sandbox(request: ApiRequest, sandbox_id: SandboxIdPath) -> Response:
    """Record the end of a sandbox."""
    operation = await request.services.sandboxes.delete(request.call, sandbox_id)
    return await operation_answer(request, operation)


async def _replay_row(request: ApiRequest, linked: Linked, arguments: Mapping[str, Any]) -> Response:
    row = await request.services.sandboxes.get(request.principal, arguments["sandbox_id"])
    return Json(render.sandbox(row))


@routes.add(
    "PATCH",
    "/v1/sandboxes/{sandbox_id}",
    rule=Rule(right=Scope.SANDBOXES_WRITE),
    document=Document(
        id="updateSandbox",
        summary="Change a sandbox's metadata or automatic lifecycle",
        tag=routes.tag,
        description="Each field that is given replaces the old value whole.",
        requests={
            "metadata": {"metadata": {"task": "43"}},
            "lifecycle": {"auto_lifecycle": {"idle_seconds": 3600, "on_idle": "delete"}},
        },
        answers={
            200: Answer(description="The sandbox.", model=Sandbox, examples={"changed": examples.SANDBOX_RUNNING})
        },
        raises=(Conflict("the sandbox changed at the same time; try again"),),
    ),
)
async def update_sandbox(request: ApiRequest, sandbox_id: SandboxIdPath, body: SandboxUpdate) -> Response:
    """Replace metadata or automatic lifecycle."""
    row = await request.services.sandboxes.update(
        request.call, sandbox_id, metadata=body.new_metadata, auto_lifecycle=body.new_lifecycle
    )
    return Json(render.sandbox(row))


@routes.add(
    "POST",
    "/v1/sandboxes/{sandbox_id}/extend",
    rule=Rule(right=Scope.SANDBOXES_WRITE, replay=_replay_row),
    document=Document(
        id="extendSandbox",
        summary="Extend a sandbox's life",
        tag=routes.tag,
        description="Moves `expires_at` to that many seconds from now, never back.",
        requests={"an_hour": {"seconds": 3600}},
        answers={
            200: Answer(
                description="The sandbox.",
                model=Sandbox,
                examples={"extended": examples.SANDBOX_RUNNING | {"expires_at": "2026-12-01T10:30:00.000000Z"}},
            )
        },
        raises=(FailedPrecondition("the sandbox is deleted", current_state="deleted"),),
    ),
)
async def extend_sandbox(request: ApiRequest, sandbox_id: SandboxIdPath, body: Extension) -> Response:
    """Move the end of a sandbox's life."""
    row = await request.services.sandboxes.extend(request.call, sandbox_id, seconds=body.seconds)
    return Json(render.sandbox(row))

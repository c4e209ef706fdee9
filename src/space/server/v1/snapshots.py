"""Snapshots: moments of sandboxes that last, from which new sandboxes start."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from space.control.idempotency import Linked
from space.core.account import Scope
from space.core.errors import FailedPrecondition, InvalidTransition, NotFound, OperationInProgress, Unsupported
from space.core.lifecycle import Kind
from space.core.operation import Operation, Status
from space.server.answers import Json
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1 import examples, render
from space.server.v1.schemas import snapshots as forms
from space.server.v1.schemas.shared import OPERATION, SANDBOX, SandboxIdPath, SnapshotIdPath
from space.server.v1.waiting import applied, prefer_parameter, preferred_wait

routes = Routes("snapshots")

NAMELESS = forms.SnapshotRequest()
NO_SNAPSHOT = NotFound("there is no such snapshot")
LOCATION = {"Location": "Path of the snapshot."}


async def _answer(request: ApiRequest, operation: Operation) -> Json:
    services, who = request.services, request.principal
    seconds = preferred_wait(request)
    if seconds:
        operation = await services.operations.wait(who, operation.id, seconds=seconds)
    if operation.snapshot_id is None:
        raise ValueError(f"operation {operation.id} makes no snapshot")
    snapshot = await services.sandboxes.get_snapshot(who, operation.snapshot_id)
    is_done = bool(seconds) and operation.status is Status.SUCCEEDED
    headers = {"Location": f"/v1/snapshots/{snapshot.id}", **applied(seconds)}
    content = {"snapshot": render.snapshot(snapshot), "operation": render.operation(operation)}
    return Json(content, 201 if is_done else 202, headers)


async def _replay(request: ApiRequest, linked: Linked, arguments: Mapping[str, Any]) -> Response:
    return await _answer(request, await request.services.operations.get(request.principal, linked.target_id))


@routes.add(
    "POST",
    "/v1/sandboxes/{sandbox_id}/snapshots",
    rule=Rule(right=Scope.SANDBOXES_WRITE, replay=_replay),
    document=Document(
        id="snapshotSandbox",
        summary="Take a snapshot of a sandbox",
        tag=routes.tag,
        description=(
            "Saves memory, processes and files while the sandbox goes on. The snapshot stays until it is deleted, "
            "also when the sandbox is gone; create a sandbox with its id as `template` to go on from it. "
            "A failed sandbox recovers from its last one. Asking while one is being taken joins that one."
        ),
        requests={"named": {"name": "trained"}, "nameless": {}},
        parameters=(prefer_parameter("answer 201 once it is durable"),),
        answers={
            201: Answer(
                description="It is durable: `Prefer: wait` was in time.",
                model=forms.SnapshotAccepted,
                headers=LOCATION,
                examples={
                    "ready": {
                        "snapshot": examples.SNAPSHOT_READY,
                        "operation": examples.operation(Kind.SNAPSHOT, "succeeded"),
                    }
                },
            ),
            202: Answer(
                description="Recorded, or joined if it is under way.",
                model=forms.SnapshotAccepted,
                headers=LOCATION,
                examples={
                    "accepted": {
                        "snapshot": examples.SNAPSHOT_UPLOADING,
                        "operation": examples.operation(Kind.SNAPSHOT, "running"),
                    }
                },
            ),
        },
        raises=(
            OperationInProgress(
                "cannot snapshot: suspend is under way; wait for the operation and try again", operation_id=OPERATION
            ),
            InvalidTransition("cannot snapshot: the sandbox is failed", current_state="failed"),
            Unsupported("the runtime of this sandbox cannot save its memory", feature="memory_snapshot"),
        ),
    ),
)
async def snapshot_sandbox(
    request: ApiRequest, sandbox_id: SandboxIdPath, body: forms.SnapshotRequest = NAMELESS
) -> Response:
    """Save a moment."""
    changed = await request.services.sandboxes.snapshot(request.call, sandbox_id, body.name)
    return await _answer(request, changed.operation)


@routes.add(
    "GET",
    "/v1/snapshots",
    rule=Rule(right=Scope.SANDBOXES_READ),
    document=Document(
        id="listSnapshots",
        summary="List snapshots",
        tag=routes.tag,
        description="Those that were asked for and are durable, oldest first.",
        answers={
            200: Answer(
                description="A page of snapshots.",
                model=forms.SnapshotPage,
                examples={"some": examples.page(examples.SNAPSHOT_READY), "none": examples.page()},
            )
        },
    ),
)
async def list_snapshots(request: ApiRequest, query: Annotated[forms.SnapshotListQuery, Query()]) -> Response:
    """List the project's snapshots."""
    page = await request.services.sandboxes.list_snapshots(
        request.principal, sandbox_id=query.sandbox, limit=query.limit, cursor=query.cursor
    )
    return Json({"items": [render.snapshot(row) for row in page.items], "next_cursor": page.next_cursor})


@routes.add(
    "GET",
    "/v1/snapshots/{snapshot_id}",
    rule=Rule(right=Scope.SANDBOXES_READ),
    document=Document(
        id="getSnapshot",
        summary="Get a snapshot",
        tag=routes.tag,
        description="Of any purpose: also the one that a suspended sandbox names in `snapshot_id`.",
        answers={
            200: Answer(
                description="The snapshot.",
                model=forms.Snapshot,
                examples={"ready": examples.SNAPSHOT_READY, "uploading": examples.SNAPSHOT_UPLOADING},
            )
        },
        raises=(NO_SNAPSHOT,),
    ),
)
async def get_snapshot(request: ApiRequest, snapshot_id: SnapshotIdPath) -> Response:
    """Show a snapshot."""
    row = await request.services.sandboxes.get_snapshot(request.principal, snapshot_id)
    return Json(render.snapshot(row))


@routes.add(
    "DELETE",
    "/v1/snapshots/{snapshot_id}",
    rule=Rule(right=Scope.SANDBOXES_WRITE),
    document=Document(
        id="deleteSnapshot",
        summary="Delete a snapshot",
        tag=routes.tag,
        description=(
            "Nobody can start from it any more; its space is freed in the background. A sandbox that was made from "
            "it and has no later durable state needs it: suspend, snapshot or delete that first."
        ),
        answers={204: Answer(description="It is gone.")},
        raises=(
            NO_SNAPSHOT,
            FailedPrecondition(
                "a sandbox has no later state than this snapshot; delete or suspend it first", sandbox_id=SANDBOX
            ),
        ),
    ),
)
async def delete_snapshot(request: ApiRequest, snapshot_id: SnapshotIdPath) -> Response:
    """Let a snapshot go."""
    await request.services.sandboxes.delete_snapshot(request.call, snapshot_id)
    return Response(status_code=204)

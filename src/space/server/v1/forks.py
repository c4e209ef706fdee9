"""`/v1/sandboxes/{id}/fork`: children that go on, each by itself, from where their source is.

Each child is a sandbox of its own or says why there is none; the source keeps running.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from space.control.idempotency import Linked
from space.core.account import Scope
from space.core.errors import (
    CapacityUnavailable,
    Conflict,
    InvalidTransition,
    LimitExceeded,
    NotFound,
    OperationInProgress,
    SpaceError,
    Unsupported,
)
from space.core.ids import OperationId
from space.core.lifecycle import Kind
from space.core.operation import Operation as OperationRow
from space.core.operation import Status
from space.core.sandbox import Sandbox
from space.server.answers import Json
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1 import examples, render
from space.server.v1.schemas import snapshots as forms
from space.server.v1.schemas.shared import OPERATION, SandboxIdPath
from space.server.v1.waiting import applied, prefer_parameter, preferred_wait

routes = Routes("sandboxes")

ONE_CHILD = forms.ForkRequest()
FULL = LimitExceeded("the project may hold 50 sandboxes; delete one first", quota="sandboxes", limit=50)
LOST = Conflict("this child was not made; the first answer to this Idempotency-Key said why")
LOCATION = {"Location": "Path of the operation that saves the source."}

Child = tuple[Sandbox, OperationId] | SpaceError


async def _answer(request: ApiRequest, forking: OperationRow, children: Sequence[Child], seconds: float) -> Json:
    """Show the fork; wait for it, and for its children to run, for at most `seconds`."""
    services, who = request.services, request.principal
    deadline = services.clock.monotonic() + seconds
    shown: list[dict[str, Any]] = []
    are_running = True
    for child in children:
        if isinstance(child, SpaceError):
            shown.append({"error": render.failure(child)})
            continue
        sandbox, operation_id = child
        operation = await services.operations.get(who, operation_id)
        if seconds:
            left = deadline - services.clock.monotonic()
            operation = await services.operations.wait(who, operation_id, seconds=max(0.0, left))
            sandbox = await services.sandboxes.get(who, sandbox.id)
        are_running = are_running and operation.status is Status.SUCCEEDED
        shown.append({"sandbox": render.sandbox(sandbox), "operation": render.operation(operation)})
    forking = await services.operations.get(who, forking.id)
    headers = {"Location": f"/v1/operations/{forking.id}", **applied(seconds)}
    content = {"operation": render.operation(forking), "children": shown}
    return Json(content, 201 if seconds and are_running else 202, headers)


async def _replay(request: ApiRequest, linked: Linked, arguments: Mapping[str, Any]) -> Response:
    """Answer again when the first answer was lost with the server that made it."""
    services, who = request.services, request.principal
    forking = await services.operations.get(who, linked.target_id)
    children: list[Child] = []
    for made in forking.request.get("children", ()):
        try:
            sandbox = await services.sandboxes.get(who, made["sandbox_id"])
            children.append((sandbox, OperationId(made["operation_id"])))
        except NotFound:
            children.append(LOST)
    return await _answer(request, forking, children, preferred_wait(request))


@routes.add(
    "POST",
    "/v1/sandboxes/{sandbox_id}/fork",
    rule=Rule(right=Scope.SANDBOXES_WRITE, replay=_replay, kept_bytes=1 << 20),
    document=Document(
        id="forkSandbox",
        summary="Fork a sandbox",
        tag=routes.tag,
        description=(
            "Makes `count` children that go on from this moment with the same memory, processes and files, each with "
            "an id, address, random numbers and limits of its own. The source stays as it is. Per child: a sandbox "
            "and the operation that starts it, or an error; if not even one can be made, the answer is that error."
        ),
        requests={
            "one": {"count": 1},
            "three": {
                "count": 3,
                "metadata": {"task": "43"},
                "auto_lifecycle": {"idle_seconds": 600, "on_idle": "delete"},
            },
        },
        parameters=(prefer_parameter("answer 201 once the children run"),),
        answers={
            201: Answer(
                description="All that could be made run: `Prefer: wait` was in time.",
                model=forms.Forked,
                headers=LOCATION,
                examples={
                    "running": {
                        "operation": examples.operation(Kind.FORK, "succeeded"),
                        "children": [
                            {"sandbox": examples.SANDBOX_RUNNING, "operation": examples.OPERATION_SUCCEEDED},
                        ],
                    }
                },
            ),
            202: Answer(
                description="Recorded: the children start once the source is saved.",
                model=forms.Forked,
                headers=LOCATION,
                examples={
                    "room_for_one": {
                        "operation": examples.operation(Kind.FORK, "running"),
                        "children": [
                            {"sandbox": examples.SANDBOX_CREATING, "operation": examples.OPERATION_QUEUED},
                            {"error": render.failure(FULL)},
                        ],
                    }
                },
            ),
        },
        raises=(
            FULL,
            CapacityUnavailable("no node has 512 MiB of memory free", memory_mib=512),
            OperationInProgress(
                "cannot fork: suspend is under way; wait for the operation and try again", operation_id=OPERATION
            ),
            InvalidTransition("cannot fork: the sandbox is failed", current_state="failed"),
            Unsupported("the runtime of this sandbox cannot save its memory", feature="memory_snapshot"),
        ),
    ),
)
async def fork_sandbox(request: ApiRequest, sandbox_id: SandboxIdPath, body: forms.ForkRequest = ONE_CHILD) -> Response:
    """Make children."""
    forked = await request.services.sandboxes.fork(
        request.call,
        sandbox_id,
        count=body.count,
        metadata=body.metadata,
        env=body.env,
        auto_lifecycle=body.lifecycle,
    )
    children = [_made(child) for child in forked.children]
    return await _answer(request, forked.changed.operation, children, preferred_wait(request))


def _made(child: Sandbox | SpaceError) -> Child:
    if isinstance(child, SpaceError):
        return child
    if child.held_by is None:
        raise ValueError(f"the child {child.id} has no operation that starts it")
    return child, child.held_by

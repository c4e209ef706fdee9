"""Pause, suspend, wake, recover: asks for a state, and answers with the operation that leads there.

What this installation cannot do yet is refused by the control plane as `unsupported`.
"""

from starlette.responses import Response

from space.core.account import Scope
from space.core.errors import InvalidTransition, OperationInProgress, Unsupported
from space.core.lifecycle import Kind
from space.server.answers import Json
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1 import examples, render
from space.server.v1.operations import replay_operation
from space.server.v1.schemas.operations import Operation
from space.server.v1.schemas.shared import OPERATION, SandboxIdPath

routes = Routes("sandboxes")

ONE = "/v1/sandboxes/{sandbox_id}"
RULE = Rule(right=Scope.SANDBOXES_WRITE, replay=replay_operation)


def _document(kind: Kind, summary: str, description: str, *, state: str, is_published: bool = True) -> Document:
    shown = examples.OPERATION_RUNNING | {"kind": str(kind), "step": None}
    return Document(
        id=f"{kind}Sandbox",
        summary=summary,
        tag=routes.tag,
        is_published=is_published,
        description=f"{description} Asking for the state that it is in succeeds at once.",
        answers={
            202: Answer(
                description="Recorded, or joined if it is under way.",
                model=Operation,
                headers={"Location": "Path of the operation."},
                examples={"accepted": shown, "already_so": shown | {"status": "succeeded"}},
            )
        },
        raises=(
            Unsupported(f"{kind} is not supported by this version", feature=str(kind)),
            OperationInProgress(f"cannot {kind}: create is under way", operation_id=OPERATION),
            InvalidTransition(f"cannot {kind}: the sandbox is {state}", current_state=state),
        ),
    )


async def _change(request: ApiRequest, sandbox_id: str, kind: Kind) -> Response:
    changed = await request.services.sandboxes.change(request.call, sandbox_id, kind)
    operation = changed.operation
    return Json(render.operation(operation), 202, {"Location": f"/v1/operations/{operation.id}"})


@routes.add(
    "POST",
    ONE + "/pause",
    rule=RULE,
    document=_document(
        Kind.PAUSE, "Pause a sandbox", "Keeps its memory on the node; it is not durable.", state="suspended"
    ),
)
async def pause_sandbox(request: ApiRequest, sandbox_id: SandboxIdPath) -> Response:
    """Stop its processors."""
    return await _change(request, sandbox_id, Kind.PAUSE)


@routes.add(
    "POST",
    ONE + "/suspend",
    rule=RULE,
    document=_document(
        Kind.SUSPEND, "Suspend a sandbox", "Saves memory and disk durably and frees its machine.", state="failed"
    ),
)
async def suspend_sandbox(request: ApiRequest, sandbox_id: SandboxIdPath) -> Response:
    """Save it and free its machine."""
    return await _change(request, sandbox_id, Kind.SUSPEND)


@routes.add(
    "POST",
    ONE + "/wake",
    rule=RULE,
    document=_document(Kind.WAKE, "Wake a sandbox", "Goes on where it was paused or suspended.", state="failed"),
)
async def wake_sandbox(request: ApiRequest, sandbox_id: SandboxIdPath) -> Response:
    """Go on where it stopped."""
    return await _change(request, sandbox_id, Kind.WAKE)


@routes.add(
    "POST",
    ONE + "/recover",
    rule=RULE,
    document=_document(
        Kind.RECOVER,
        "Recover a failed sandbox",
        "Brings it back from its last durable state, with the same id.",
        state="suspended",
        is_published=False,
    ),
)
async def recover_sandbox(request: ApiRequest, sandbox_id: SandboxIdPath) -> Response:
    """Bring it back."""
    return await _change(request, sandbox_id, Kind.RECOVER)

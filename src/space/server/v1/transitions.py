"""Pause, suspend, wake, recover: asks for a state, and answers with the operation that leads there."""

from starlette.responses import Response

from space.core.account import Scope
from space.core.errors import FailedPrecondition, InvalidTransition, OperationInProgress, SpaceError, Unsupported
from space.core.lifecycle import Kind
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1 import examples
from space.server.v1.operations import replay_operation
from space.server.v1.schemas.operations import Operation
from space.server.v1.schemas.shared import OPERATION, SandboxIdPath
from space.server.v1.waiting import operation_answer, prefer_parameter

routes = Routes("sandboxes")

ONE = "/v1/sandboxes/{sandbox_id}"
RULE = Rule(right=Scope.SANDBOXES_WRITE, replay=replay_operation)
LOCATION = {"Location": "Path of the operation."}
PREFER = prefer_parameter("answer 200 once it is so")


def _document(
    kind: Kind, summary: str, description: str, *refusals: SpaceError, state: str, is_published: bool = True
) -> Document:
    running = examples.operation(kind, "running")
    return Document(
        id=f"{kind}Sandbox",
        summary=summary,
        tag=routes.tag,
        is_published=is_published,
        description=(
            f"{description} Asking for the state that it is in succeeds at once; asking for what is under way "
            "joins it. Another change under way is a `conflict` that names its operation."
        ),
        parameters=(PREFER,),
        answers={
            200: Answer(
                description="It is so: `Prefer: wait` was in time.",
                model=Operation,
                headers=LOCATION,
                examples={"succeeded": examples.operation(kind, "succeeded")},
            ),
            202: Answer(
                description="Recorded, or joined if it is under way.",
                model=Operation,
                headers=LOCATION,
                examples={
                    "accepted": running,
                    "already_so": examples.operation(kind, "succeeded"),
                    "failed": examples.operation(kind, "failed"),
                },
            ),
        },
        raises=(
            OperationInProgress(
                f"cannot {kind}: snapshot is under way; wait for the operation and try again", operation_id=OPERATION
            ),
            InvalidTransition(f"cannot {kind}: the sandbox is {state}", current_state=state),
            *refusals,
        ),
    )


@routes.add(
    "POST",
    ONE + "/pause",
    rule=RULE,
    document=_document(
        Kind.PAUSE,
        "Pause a sandbox",
        "Stops its processors and keeps its memory on the node: quick, and not durable.",
        Unsupported("the runtime of this sandbox cannot pause", feature="pause"),
        state="suspended",
    ),
)
async def pause_sandbox(request: ApiRequest, sandbox_id: SandboxIdPath) -> Response:
    """Stop its processors."""
    changed = await request.services.sandboxes.pause(request.call, sandbox_id)
    return await operation_answer(request, changed.operation)


@routes.add(
    "POST",
    ONE + "/suspend",
    rule=RULE,
    document=_document(
        Kind.SUSPEND,
        "Suspend a sandbox",
        "Saves memory, processes, files and the output of commands in the object store and frees the machine.",
        Unsupported("the runtime of this sandbox cannot save its memory", feature="memory_snapshot"),
        state="failed",
    ),
)
async def suspend_sandbox(request: ApiRequest, sandbox_id: SandboxIdPath) -> Response:
    """Save it and free its machine."""
    changed = await request.services.sandboxes.suspend(request.call, sandbox_id)
    return await operation_answer(request, changed.operation)


@routes.add(
    "POST",
    ONE + "/wake",
    rule=RULE,
    document=_document(Kind.WAKE, "Wake a sandbox", "Goes on where it was paused or suspended.", state="failed"),
)
async def wake_sandbox(request: ApiRequest, sandbox_id: SandboxIdPath) -> Response:
    """Go on where it stopped."""
    changed = await request.services.sandboxes.wake(request.call, sandbox_id)
    return await operation_answer(request, changed.operation)


@routes.add(
    "POST",
    ONE + "/recover",
    rule=RULE,
    document=_document(
        Kind.RECOVER,
        "Recover a failed sandbox",
        "Brings a sandbox that is `restorable` back from its last durable state, with the same id.",
        FailedPrecondition("the sandbox has no durable state to recover from; it can only be deleted"),
        state="suspended",
        is_published=False,
    ),
)
async def recover_sandbox(request: ApiRequest, sandbox_id: SandboxIdPath) -> Response:
    """Bring it back."""
    changed = await request.services.sandboxes.recover(request.call, sandbox_id)
    return await operation_answer(request, changed.operation)

"""Operations: how far a change is."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from space.control.idempotency import Linked
from space.core.account import Scope
from space.core.errors import NotFound
from space.server.answers import Json
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1 import examples, render
from space.server.v1.schemas.operations import Operation, OperationQuery
from space.server.v1.schemas.shared import OperationIdPath
from space.server.v1.waiting import operation_answer

routes = Routes("operations")


async def replay_operation(request: ApiRequest, linked: Linked, arguments: Mapping[str, Any]) -> Response:
    """Show the operation that an idempotency key led to."""
    operation = await request.services.operations.get(request.principal, linked.target_id)
    return await operation_answer(request, operation)


@routes.add(
    "GET",
    "/v1/operations/{operation_id}",
    rule=Rule(right=Scope.SANDBOXES_READ),
    document=Document(
        id="getOperation",
        summary="Get an operation",
        tag=routes.tag,
        is_published=True,
        description="With `wait`, answers when it has ended or the seconds are over.",
        answers={
            200: Answer(
                description="The operation.",
                model=Operation,
                examples={
                    "running": examples.OPERATION_RUNNING,
                    "succeeded": examples.OPERATION_SUCCEEDED,
                    "failed": examples.OPERATION_FAILED,
                },
            )
        },
        raises=(NotFound("there is no such operation"),),
    ),
)
async def get_operation(
    request: ApiRequest, operation_id: OperationIdPath, query: Annotated[OperationQuery, Query()]
) -> Response:
    """Show an operation, perhaps after its end."""
    operations = request.services.operations
    if query.wait:
        operation = await operations.wait(request.principal, operation_id, seconds=query.wait)
    else:
        operation = await operations.get(request.principal, operation_id)
    return Json(render.operation(operation))

"""Warm pools: machines that are started ahead, so that a create takes milliseconds."""

from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from space.control.pools import PoolStatus
from space.core.account import Scope
from space.core.errors import FailedPrecondition, InvalidRequest, NotFound, Unsupported
from space.server.answers import Json
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1 import examples
from space.server.v1.schemas.operators import PageQuery
from space.server.v1.schemas.pools import Pool, PoolPage, PoolSet
from space.server.v1.schemas.shared import AT
from space.server.v1.templates import TemplatePath

routes = Routes("pools")

NO_POOL = NotFound("there is no pool of base", template="base")
CONFIGURED = FailedPrecondition("the pool of base comes from SPACE_POOLS; change it there")
FILLED: dict[str, Any] = {
    "template": "base",
    "runtime": "gvisor",
    "resources": {"vcpus": 1, "memory_mib": 512, "disk_mib": 2048},
    "min": 2,
    "max": 10,
    "wanted": 4,
    "ready": 4,
    "starting": 0,
    "hits": 118,
    "misses": 3,
    "refill_seconds": {"last": 0.31, "mean": 0.34},
    "configured": False,
    "reason": None,
    "created_at": AT,
}
FILLING = FILLED | {
    "max": 2,
    "wanted": 2,
    "ready": 0,
    "starting": 1,
    "hits": 0,
    "misses": 0,
    "refill_seconds": {"last": None, "mean": None},
}
SHORT = FILLED | {
    "min": 40,
    "max": 40,
    "wanted": 40,
    "ready": 7,
    "configured": True,
    "reason": "the pools' memory budget of 4096 MiB is used up; see SPACE_POOL_MEMORY_MIB",
}


def _shown(status: PoolStatus) -> dict[str, Any]:
    pool = status.pool
    return {
        "template": pool.template,
        "runtime": pool.runtime,
        "resources": {
            "vcpus": pool.resources.vcpus,
            "memory_mib": pool.resources.memory_mib,
            "disk_mib": pool.resources.disk_mib,
        },
        "min": pool.min,
        "max": pool.max,
        "wanted": status.wanted,
        "ready": status.ready,
        "starting": status.starting,
        "hits": status.hits,
        "misses": status.misses,
        "refill_seconds": {"last": _seconds(status.last_refill_seconds), "mean": _seconds(status.mean_refill_seconds)},
        "configured": status.is_configured,
        "reason": status.reason,
        "created_at": pool.created_at,
    }


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


@routes.add(
    "GET",
    "/v1/pools",
    rule=Rule(right=Scope.ADMIN),
    document=Document(
        id="listPools",
        summary="List warm pools",
        tag=routes.tag,
        description="With how many machines are ready, and how many creates found one.",
        answers={
            200: Answer(
                description="All pools.",
                model=PoolPage,
                examples={"filled": examples.page(FILLED), "short_of_memory": examples.page(SHORT)},
            )
        },
    ),
)
async def list_pools(request: ApiRequest, query: Annotated[PageQuery, Query()]) -> Response:
    """List the pools, by template; there are few, so there is no second page."""
    if query.cursor is not None:
        raise InvalidRequest("this cursor was not given out by this list", field="cursor")
    rows = await request.services.pools.list(request.principal)
    return Json({"items": [_shown(row) for row in rows], "next_cursor": None})


@routes.add(
    "PUT",
    "/v1/pools",
    rule=Rule(right=Scope.ADMIN),
    document=Document(
        id="setPool",
        summary="Make a warm pool, or change its size",
        tag=routes.tag,
        description=(
            "A pool is known by its template, runtime and resources, which a create must ask for exactly. Machines "
            "are started in the background, after this has answered."
        ),
        requests={
            "two": {"template": "base", "min": 2},
            "as_demand_goes": {"template": "base", "min": 2, "max": 10},
            "of_a_size": {"template": "base", "resources": {"vcpus": 2, "memory_mib": 1024}, "min": 1},
        },
        answers={
            200: Answer(description="The pool.", model=Pool, examples={"begun": FILLING, "was_there": FILLED}),
        },
        raises=(
            NotFound("there is no template nosuch; GET /v1/templates lists them", template="nosuch"),
            Unsupported("runtime qemu is not available: it is not known here. Available: gvisor", feature="runtime"),
        ),
    ),
)
async def set_pool(request: ApiRequest, body: PoolSet) -> Response:
    """Make a pool or change its size."""
    row = await request.services.pools.set(
        request.call,
        template=body.template,
        runtime=body.runtime,
        resources=body.core_resources,
        minimum=body.min,
        maximum=body.max,
    )
    return Json(_shown(row))


@routes.add(
    "DELETE",
    "/v1/pools/{template}",
    rule=Rule(right=Scope.ADMIN),
    document=Document(
        id="deletePool",
        summary="Delete the warm pools of a template",
        tag=routes.tag,
        description="Of all sizes. Machines that wait are ended; sandboxes are not touched.",
        answers={204: Answer(description="There are none any more.")},
        raises=(NO_POOL, CONFIGURED),
    ),
)
async def delete_pool(request: ApiRequest, template: TemplatePath) -> Response:
    """Remove the pools of a template."""
    await request.services.pools.delete(request.call, template)
    return Response(status_code=204)

"""Nodes, as far as placement looks at them."""

from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from space.core.account import Scope
from space.core.errors import InvalidRequest
from space.core.node import Capabilities, NodeFacts
from space.server.answers import Json
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1 import examples
from space.server.v1.schemas.operators import NodePage, PageQuery
from space.server.v1.schemas.shared import NODE

routes = Routes("nodes")

GVISOR = {
    "runtime": "gvisor",
    "available": True,
    "version": "release-20240513.0",
    "pause": True,
    "memory_snapshot": True,
    "reasons": {},
}
FIRECRACKER = GVISOR | {
    "runtime": "firecracker",
    "available": False,
    "version": None,
    "pause": False,
    "memory_snapshot": False,
    "reasons": {"available": "/dev/kvm cannot boot a guest on this host"},
}
ONE = {
    "id": NODE,
    "runtimes": [GVISOR, FIRECRACKER],
    "vcpus": 2,
    "memory_mib": 7936,
    "memory_available_mib": 5120,
    "disk_available_mib": 40_960,
    "machines": 3,
}


def _runtime(able: Capabilities) -> dict[str, Any]:
    return {
        "runtime": able.runtime,
        "available": able.is_available,
        "version": able.version,
        "pause": able.pause,
        "memory_snapshot": able.memory_snapshot,
        "reasons": dict(able.reasons),
    }


def _shown(facts: NodeFacts) -> dict[str, Any]:
    return {
        "id": facts.id,
        "runtimes": [_runtime(able) for able in facts.runtimes.values()],
        "vcpus": facts.vcpus,
        "memory_mib": facts.memory_mib,
        "memory_available_mib": facts.memory_available_mib,
        "disk_available_mib": facts.disk_available_mib,
        "machines": facts.machines,
    }


@routes.add(
    "GET",
    "/v1/nodes",
    rule=Rule(right=Scope.ADMIN),
    document=Document(
        id="listNodes",
        summary="List nodes",
        tag=routes.tag,
        description="With what each runtime can do there, and why not.",
        answers={200: Answer(description="All nodes.", model=NodePage, examples={"one": examples.page(ONE)})},
    ),
)
async def list_nodes(request: ApiRequest, query: Annotated[PageQuery, Query()]) -> Response:
    """List the hosts of sandboxes: this one, so there is no second page."""
    if query.cursor is not None:
        raise InvalidRequest("this cursor was not given out by this list", field="cursor")
    return Json({"items": [_shown(await request.services.node_facts())], "next_cursor": None})

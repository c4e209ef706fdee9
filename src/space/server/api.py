"""The API server: all endpoints behind one edge."""

from starlette.types import ASGIApp, Receive, Scope, Send

from space.core.errors import NotFound
from space.server.auth import sessions, tokens, users
from space.server.concurrency import Concurrency
from space.server.dataplane import sessions as dataplane
from space.server.edge import Edge
from space.server.endpoint import Endpoint
from space.server.meta import meta_endpoints
from space.server.openapi import Documents, build_documents
from space.server.paths import Paths
from space.server.refusals import Refusals
from space.server.request import CONCURRENCY, REFUSALS, SERVICES
from space.server.services import Services
from space.server.v1 import (
    audit,
    commands,
    files,
    forks,
    nodes,
    operations,
    pools,
    processes,
    projects,
    run,
    sandboxes,
    snapshots,
    templates,
    timeline,
    transitions,
    unsupported,
)

MODULES = (
    sandboxes,
    transitions,
    forks,
    snapshots,
    timeline,
    operations,
    commands,
    processes,
    run,
    files,
    templates,
    projects,
    nodes,
    pools,
    audit,
    unsupported,
    sessions,
    tokens,
    users,
)


def api_endpoints() -> list[Endpoint]:
    """Return every endpoint of the API but those that describe it."""
    return [endpoint for module in MODULES for endpoint in module.routes.endpoints]


def all_endpoints() -> list[Endpoint]:
    """Return every endpoint that the OpenAPI document describes, those of the data plane included."""
    nothing = Documents(full=b"{}", published=b"{}")
    return [*api_endpoints(), *dataplane.routes.endpoints, *meta_endpoints(lambda: nothing)]


def create_api(services: Services) -> ASGIApp:
    """Make the ASGI application that answers `/v1`, `/auth/v1` and what describes them."""
    endpoints = api_endpoints()
    endpoints += meta_endpoints(lambda: build_documents(all_endpoints()))
    paths = Paths(endpoints)

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path.startswith("/api/v1/"):  # published beside /v1
            path = scope["path"] = path[4:]
        elif not path.startswith("/"):
            raise NotFound("there is nothing at this path; /openapi.json lists what there is")
        endpoint, values = paths.find(scope["method"], path)
        await endpoint.serve(scope, receive, send, values)

    state = {
        SERVICES: services,
        CONCURRENCY: Concurrency(limit=services.settings.api_concurrency, mode=services.settings.api_concurrency_mode),
        REFUSALS: Refusals(services.clock),
    }
    return Edge(dispatch, state=state, server="api")

"""The data plane's server: one edge, few routes, an origin of its own."""

from starlette.types import ASGIApp, Receive, Scope, Send

from space.server.dataplane import sessions
from space.server.edge import Edge
from space.server.paths import Paths
from space.server.request import SERVICES
from space.server.services import Services


def create_data_plane(services: Services) -> ASGIApp:
    """Make the ASGI application that serves command streams."""
    paths = Paths(sessions.routes.endpoints)

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        endpoint, values = paths.find(scope["method"], scope["path"])
        await endpoint.serve(scope, receive, send, values)

    return Edge(dispatch, state={SERVICES: services}, server="data_plane")

"""A whole server in this process: real store, control plane, node and guest agents; machines without isolation."""

import asyncio
import contextlib
import json
import secrets
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp
from tests.node.harness import World

from space.app.compose import Control, build_control
from space.app.listener import Listener, listen, url_of
from space.config import Settings
from space.core.account import READ_ONLY, Scope
from space.core.ports import NodeClient, Templates
from space.host.clock import SystemClock
from space.server.api import create_api
from space.server.dataplane.app import create_data_plane
from space.server.services import Services
from space.storage.sql.store import open_store
from space.testing.sealer import FakeSealer
from space.testing.templates import FakeTemplates

TLS = ssl.create_default_context()  # unused, but httpx would make one a client, at 30 ms each
READ_ONLY_SCOPES = sorted(READ_ONLY)
WORKING_SCOPES = sorted(set(Scope) - {Scope.ADMIN, Scope.AUDIT_READ})


@dataclass(kw_only=True)
class Server:
    """What a test talks to."""

    control: Control
    api_url: str
    data_plane_url: str
    admin: str  #: a token that may do anything
    admin_email: str
    admin_password: str

    @property
    def services(self) -> Services:
        return self.control.services

    def client(self, token: str | None = None, **options: Any) -> httpx.AsyncClient:
        """Return a client that acts as the administrator, or with `token`; with an empty token as nobody."""
        token = self.admin if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.AsyncClient(base_url=self.api_url, headers=headers, **{"timeout": 30, "verify": TLS, **options})

    async def token(self, *scopes: str, **fields: Any) -> str:
        """Make a token with these scopes."""
        async with self.client() as client:
            answer = await client.post("/auth/v1/tokens", json={"name": "test", "scopes": list(scopes), **fields})
            assert answer.status_code == 201, answer.text
            return str(answer.json()["token"])

    async def other_project(self) -> str:
        """Make another project and a token of it that may do all but administer."""
        async with self.client() as client:
            answer = await client.post("/v1/projects", json={"name": f"other-{secrets.token_hex(4)}"})
            assert answer.status_code == 201, answer.text
            return await self.token(*WORKING_SCOPES, project=answer.json()["id"])

    async def sandbox(self, client: httpx.AsyncClient, **fields: Any) -> str:
        """Create a sandbox and wait until it runs."""
        answer = await client.post("/v1/sandboxes", json={"template": "base", **fields}, headers={"Prefer": "wait=30"})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["sandbox"]["id"])


@contextlib.asynccontextmanager
async def listening(*apps: ASGIApp) -> AsyncIterator[list[str]]:
    """Serve each application on a free port of its own; they stop together, as stopping takes a listener a while."""
    socks = [listen("127.0.0.1:0", setting="SPACE_LISTEN") for _ in apps]
    listeners = [Listener(app, sock) for app, sock in zip(apps, socks, strict=True)]
    tasks = [asyncio.create_task(listener.serve_until_stopped()) for listener in listeners]
    try:
        yield [url_of(sock) for sock in socks]
    finally:
        for listener in listeners:
            listener.stop()
        await asyncio.gather(*tasks)
        for sock in socks:
            sock.close()


@contextlib.asynccontextmanager
async def serving(
    directory: Path, node: NodeClient, *, templates: Templates | None = None, **settings: Any
) -> AsyncIterator[Server]:
    """Serve the API and the data plane over a node."""
    store = open_store(directory / "space.db")
    clock = SystemClock()
    urls: dict[str, str] = {}
    control = build_control(
        Settings(data_dir=directory, memory_reserve_mib=0, **settings),
        store=store,
        node=node,
        templates=templates or FakeTemplates(),
        clock=clock,
        data_plane_url=lambda: urls["data"],
        checks={"node": node.facts},
        sealer=FakeSealer(),
    )
    tasks: list[asyncio.Task[None]] = []
    try:
        bootstrap = await control.accounts.bootstrap(cli_secret=None)
        await control.commands.reconcile()
        tasks = [asyncio.create_task(loop()) for loop in control.loops.values()]
        apps = create_api(control.services), create_data_plane(control.services)
        async with listening(*apps) as (api_url, data_url):
            urls["data"] = data_url
            assert bootstrap.cli_token is not None
            assert bootstrap.admin_password is not None
            yield Server(
                control=control,
                api_url=api_url,
                data_plane_url=data_url,
                admin=bootstrap.cli_token,
                admin_email=bootstrap.admin_email,
                admin_password=bootstrap.admin_password,
            )
    finally:
        await control.services.runs.aclose()
        await control.commands.aclose()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.aclose()


@contextlib.asynccontextmanager
async def whole_server(directory: Path, **settings: Any) -> AsyncIterator[Server]:
    """Serve over a real node with real guest agents, whose machines are processes of this host."""
    world = World.make(directory)
    try:
        async with (
            world.running() as node,
            serving(directory, node, templates=FakeTemplates(world.template_at(world.rootfs)), **settings) as server,
        ):
            yield server
    finally:
        world.close()


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event as it came."""

    id: str | None
    event: str
    data: Any


async def sse_events(answer: httpx.Response) -> AsyncIterator[SseEvent]:
    """Parse server-sent events as the standard says, as far as we send them."""
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line == "":
            if fields:
                yield SseEvent(fields.get("id"), fields["event"], json.loads(fields["data"]))
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")

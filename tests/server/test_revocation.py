"""A token that is revoked ends what it had begun, not only what it would begin."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.server.harness import Server
from tests.server.test_error_shape import shape_of

from space.server import revocation
from space.testing.node import FakeNode

pytestmark = [pytest.mark.anyio, pytest.mark.live]


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocation, "LOOK_SECONDS", 0.05)


async def made(client: httpx.AsyncClient) -> tuple[str, str]:
    """Make a token; return its id and secret."""
    scopes = ["sandboxes:read", "sandboxes:write", "commands:run", "files:read", "files:write"]
    answer = await client.post("/auth/v1/tokens", json={"name": "short", "scopes": scopes})
    return answer.json()["id"], answer.json()["token"]


async def never_ending() -> AsyncIterator[bytes]:
    while True:
        yield b"x"
        await asyncio.sleep(0.02)


async def revoke(client: httpx.AsyncClient, token_id: str) -> None:
    await asyncio.sleep(0.2)
    assert (await client.delete(f"/auth/v1/tokens/{token_id}")).status_code == 204


async def test_streams_of_the_api_are_cut(server: Server, client: httpx.AsyncClient) -> None:
    sandbox_id = await server.sandbox(client)
    token_id, secret = await made(client)
    sse = {"Accept": "text/event-stream"}
    async with (
        asyncio.timeout(10),
        server.client(secret) as holder,
        holder.stream("GET", f"/v1/sandboxes/{sandbox_id}/events", headers=sse) as timeline,
    ):
        assert timeline.status_code == 200
        await revoke(client, token_id)
        with pytest.raises(httpx.RemoteProtocolError):  # broken off: it must not pass for a stream that ended
            await timeline.aread()


async def test_typing_into_a_process_is_cut(server: Server, client: httpx.AsyncClient, node: FakeNode) -> None:
    sandbox_id = await server.sandbox(client)
    body = {"argv": ["sh"], "stdin": "pipe", "start": "now"}
    process = (await client.post(f"/v1/sandboxes/{sandbox_id}/commands", json=body)).json()["process"]["id"]
    token_id, secret = await made(client)
    async with asyncio.timeout(10), server.client(secret) as holder, asyncio.TaskGroup() as tasks:
        path = f"/v1/sandboxes/{sandbox_id}/processes/{process}/stdin"
        typing: asyncio.Task[Any] = tasks.create_task(_typed(holder, path))
        await revoke(client, token_id)
        await typing
    (session,) = node.sessions.values()
    written = bytes(session.stdin)
    await asyncio.sleep(0.2)
    assert written
    assert bytes(session.stdin) == written


async def _typed(holder: httpx.AsyncClient, path: str) -> None:
    try:
        answer = await holder.put(path, content=never_ending())
    except httpx.TransportError:
        return  # the connection was closed before all was sent
    shape_of(answer, 401, "unauthorized")


async def test_a_program_that_runs_in_one_call_is_killed(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client)
    token_id, secret = await made(client)
    async with asyncio.timeout(10), server.client(secret) as holder, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(holder.post(f"/v1/sandboxes/{sandbox_id}/exec", json={"argv": ["sleep"]}))
        await revoke(client, token_id)
        shape_of(await running, 401, "unauthorized")
    (session,) = node.sessions.values()
    assert session.signals == ["SIGKILL"]


async def test_long_requests_of_a_good_token_go_on(server: Server, client: httpx.AsyncClient, node: FakeNode) -> None:
    sandbox_id = await server.sandbox(client)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(client.post(f"/v1/sandboxes/{sandbox_id}/exec", json={"argv": ["sleep"]}))
        await asyncio.sleep(0.4)
        (session_id,) = node.sessions
        node.exit_process(session_id, 0)
        assert (await running).json()["exit_code"] == 0

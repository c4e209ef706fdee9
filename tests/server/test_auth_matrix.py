"""Every endpoint against every kind of caller that it must not serve."""

import httpx
import pytest
from tests.server.calls import CallOf, api_calls, named
from tests.server.harness import Server
from tests.server.test_error_shape import shape_of

from space.core.account import Scope
from space.server import refusals

pytestmark = pytest.mark.anyio

CLOSED = [call for call in api_calls() if not call.endpoint.rule.is_public]
SCOPED = [call for call in CLOSED if call.endpoint.rule.right is not None]
OF_A_SANDBOX = [call for call in SCOPED if "{sandbox_id}" in call.endpoint.path]


def without_body(answer: httpx.Response, status: int) -> bool:
    """Whether this is the answer to a HEAD, which has only its status."""
    assert answer.status_code == status or answer.request.method != "HEAD"
    return answer.request.method == "HEAD"


NO_TOKENS = (None, "", "Bearer", "Basic YWRtaW46YWRtaW4=", "Bearer nonsense", "Bearer spt_0", "Bearer \xff")


@pytest.mark.parametrize("call", named(CLOSED))
async def test_nobody_is_served_without_a_valid_token(shared: Server, call: CallOf) -> None:
    async with shared.client("") as client:
        for header in NO_TOKENS:
            headers = {} if header is None else {"Authorization": header.encode("latin-1")}
            answer = await client.request(url=call.path(), headers=headers, **call.arguments)
            if not without_body(answer, 401):
                shape_of(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("call", named(SCOPED))
async def test_a_token_without_the_scope_is_refused_and_told_which(shared: Server, call: CallOf) -> None:
    right = call.endpoint.rule.right
    others = sorted(set(Scope) - {right, Scope.ADMIN})
    async with shared.client(await shared.token(*others)) as client:
        answer = await client.request(url=call.path(), **call.arguments)
    if not without_body(answer, 403):
        assert shape_of(answer, 403, "forbidden")["details"]["scope"] == right


@pytest.mark.parametrize("call", named(OF_A_SANDBOX))
async def test_a_sandbox_of_another_project_is_not_found(shared: Server, call: CallOf) -> None:
    async with shared.client() as client:
        created = await client.post("/v1/sandboxes", json={"template": "base"})
        sandbox_id = created.json()["sandbox"]["id"]
    async with shared.client(await shared.other_project()) as stranger:
        answer = await stranger.request(url=call.path(sandbox_id=sandbox_id), **call.arguments)
    if not without_body(answer, 404):
        shape_of(answer, 404, "not_found")


ONE_SCOPE = [call for call in SCOPED if call.endpoint.rule.right is not Scope.ADMIN and str(call) != "run"]


@pytest.mark.parametrize("call", named(ONE_SCOPE))
async def test_the_one_scope_that_it_names_is_enough(shared: Server, call: CallOf) -> None:
    right = call.endpoint.rule.right
    assert right is not None
    async with shared.client(await shared.token(right)) as client:
        answer = await client.request(url=call.path(), **call.arguments)
    assert answer.status_code not in (401, 403), answer.text


async def test_a_run_needs_the_right_to_make_its_sandbox_too(shared: Server) -> None:
    async with shared.client(await shared.token(Scope.COMMANDS_RUN)) as client:
        body = {"sandbox": {"template": "base"}, "command": {"shell": "true"}}
        answer = await client.post("/v1/run", json=body)
    assert shape_of(answer, 403, "forbidden")["details"]["scope"] == "sandboxes:write"


async def test_a_list_shows_nothing_of_another_project(server: Server) -> None:
    async with server.client() as client:
        await client.post("/v1/sandboxes", json={"template": "base"})
    async with server.client(await server.other_project()) as stranger:
        assert (await stranger.get("/v1/sandboxes")).json()["items"] == []
        projects = (await stranger.get("/v1/projects")).json()["items"]
        assert [project["name"].partition("-")[0] for project in projects] == ["other"]


async def test_a_revoked_token_stops_at_once(server: Server, client: httpx.AsyncClient) -> None:
    made = await client.post("/auth/v1/tokens", json={"name": "short", "scopes": ["sandboxes:read"]})
    async with server.client(made.json()["token"]) as holder:
        assert (await holder.get("/v1/sandboxes")).status_code == 200
        assert (await client.delete(f"/auth/v1/tokens/{made.json()['id']}")).status_code == 204
        shape_of(await holder.get("/v1/sandboxes"), 401, "unauthorized")
    assert (await client.delete(f"/auth/v1/tokens/{made.json()['id']}")).status_code == 204


async def test_a_token_for_one_template_cannot_create_from_another_and_both_attempts_are_audited(
    server: Server, client: httpx.AsyncClient
) -> None:
    """Case 25 of the reported faults."""
    made = await client.post(
        "/auth/v1/tokens",
        json={"name": "lab", "scopes": ["sandboxes:read", "sandboxes:write"], "templates": ["other"]},
    )
    token_id = made.json()["id"]
    async with server.client(made.json()["token"]) as holder:
        shape_of(await holder.post("/v1/sandboxes", json={"template": "base"}), 403, "forbidden")
    reader = await client.post("/auth/v1/tokens", json={"name": "reader", "scopes": ["sandboxes:read"]})
    async with server.client(reader.json()["token"]) as holder:
        shape_of(await holder.post("/v1/sandboxes", json={"template": "base"}), 403, "forbidden")
        assert (await holder.get("/v1/sandboxes")).status_code == 200
    assert (await client.post("/v1/sandboxes", json={"template": "base"})).status_code == 202

    refused = (await client.get("/v1/audit", params={"action": "createSandbox", "outcome": "forbidden"})).json()[
        "items"
    ]
    assert {entry["principal"] for entry in refused} == {token_id, reader.json()["id"]}
    allowed = (await client.get("/v1/audit", params={"action": "createSandbox", "outcome": "ok"})).json()["items"]
    assert len(allowed) == 1


async def test_attempts_without_a_token_are_audited_but_cannot_fill_the_log(server: Server) -> None:
    async with server.client("") as nobody:
        for _ in range(70):
            await nobody.post("/v1/sandboxes", json={"template": "base"})
    async with server.client() as client:
        entries = (await client.get("/v1/audit", params={"principal": "anonymous"})).json()["items"]
    assert len(entries) == 60
    assert {entry["outcome"] for entry in entries} == {"unauthorized"}


async def test_refusals_of_one_token_are_audited_but_cannot_fill_the_log(
    server: Server, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "PRINCIPAL_A_MINUTE", 5)
    async with server.client(await server.token("sandboxes:read")) as reader:
        for _ in range(9):
            assert (await reader.post("/v1/sandboxes", json={"template": "base"})).status_code == 403
    refused = (await client.get("/v1/audit", params={"outcome": "forbidden"})).json()["items"]
    assert len(refused) == 5
    await client.post("/v1/sandboxes", json={"template": "nosuch"})  # others are not affected
    assert (await client.get("/v1/audit", params={"outcome": "not_found"})).json()["items"]


async def test_a_failed_login_is_audited_once(server: Server, client: httpx.AsyncClient) -> None:
    body = {"email": server.admin_email, "password": "not the password"}
    async with server.client("") as nobody:
        shape_of(await nobody.post("/auth/v1/sessions", json=body), 401, "unauthorized")
    (entry,) = (await client.get("/v1/audit", params={"action": "createLoginSession"})).json()["items"]
    assert (entry["outcome"], entry["target"][:3]) == ("unauthorized", "usr")

"""Logins, tokens and users over HTTP."""

import httpx
import pytest
from tests.server.harness import Server
from tests.server.test_error_shape import shape_of

pytestmark = [pytest.mark.anyio, pytest.mark.live]


async def login(server: Server, email: str, password: str) -> httpx.Response:
    async with server.client("") as nobody:
        return await nobody.post("/auth/v1/sessions", json={"email": email, "password": password})


async def test_a_login_gives_a_session_that_ends_when_asked(server: Server) -> None:
    answer = await login(server, server.admin_email, server.admin_password)
    assert answer.status_code == 201, answer.text
    body = answer.json()
    assert set(body) == {"token", "expires_at", "user"}
    assert body["user"]["role"] == "admin"
    assert answer.headers["cache-control"] == "no-store"
    async with server.client(body["token"]) as person:
        current = await person.get("/auth/v1/sessions/current")
        assert current.json()["user"] == body["user"]
        assert (await person.delete("/auth/v1/sessions/current")).status_code == 204
        shape_of(await person.get("/auth/v1/sessions/current"), 401, "unauthorized")


async def test_unknown_and_wrong_are_answered_alike_and_limited(server: Server) -> None:
    unknown = await login(server, "nobody@example.com", "x" * 12)
    wrong = await login(server, server.admin_email, "x" * 12)
    errors = [shape_of(answer, 401, "unauthorized") for answer in (unknown, wrong)]
    assert errors[0]["message"] == errors[1]["message"]
    statuses = [(await login(server, server.admin_email, "x" * 12)).status_code for _ in range(20)]
    assert statuses[-1] == 429


async def test_a_token_is_shown_once_and_listed_without_its_secret(client: httpx.AsyncClient) -> None:
    made = await client.post(
        "/auth/v1/tokens",
        json={"name": "ci", "preset": "read-only", "expires_at": "2099-01-01T00:00:00Z", "templates": ["base"]},
    )
    assert made.status_code == 201, made.text
    body = made.json()
    assert body["scopes"] == ["files:read", "sandboxes:read", "templates:read"]
    assert body["token"].startswith(body["prefix"])
    listed = await client.get("/auth/v1/tokens")
    assert body["id"] in {token["id"] for token in listed.json()["items"]}
    assert body["token"] not in listed.text
    shown = await client.get(f"/auth/v1/tokens/{body['id']}")
    assert {**shown.json(), "last_used_at": None} == {name: body[name] for name in shown.json()}


async def test_a_token_for_e2b_has_the_form_that_its_sdk_expects(client: httpx.AsyncClient) -> None:
    made = await client.post("/auth/v1/tokens", json={"name": "e", "kind": "e2b", "scopes": ["sandboxes:write"]})
    kind, _, digits = made.json()["token"].partition("_")
    assert (kind, len(digits)) == ("e2b", 40)
    assert set(digits) <= set("0123456789abcdef")


async def test_a_token_cannot_give_more_than_its_maker_has(server: Server) -> None:
    async with server.client(await server.token("sandboxes:read")) as holder:
        answer = await holder.post("/auth/v1/tokens", json={"name": "more", "scopes": ["sandboxes:write"]})
    shape_of(answer, 403, "forbidden")


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x"},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["fly"]},
        {"name": "x", "scopes": ["sandboxes:read"], "preset": "read-only"},
        {"name": "", "preset": "read-only"},
        {"name": "a\nb", "preset": "read-only"},
        {"name": "x", "preset": "read-only", "expires_at": 1},
        {"name": "x", "preset": "read-only", "expires_at": "2001-01-01T00:00:00Z"},
        {"name": "x", "preset": "read-only", "kind": "login"},
    ],
)
async def test_a_token_that_cannot_be_is_refused(client: httpx.AsyncClient, body: dict[str, object]) -> None:
    shape_of(await client.post("/auth/v1/tokens", json=body), 400, "invalid_request")


async def test_users_are_made_promoted_disabled_and_reset(server: Server, client: httpx.AsyncClient) -> None:
    made = await client.post("/auth/v1/users", json={"email": "ada@example.com"})
    assert made.status_code == 201, made.text
    user = f"/auth/v1/users/{made.json()['id']}"
    first = await login(server, "ada@example.com", made.json()["password"])
    assert first.json()["user"]["role"] == "member"
    again = await client.post("/auth/v1/users", json={"email": "ada@example.com"})
    shape_of(again, 409, "conflict")

    assert (await client.patch(user, json={"role": "viewer"})).json()["role"] == "viewer"
    reset = await client.post(f"{user}/reset-password", json={})
    assert reset.json()["password"]
    async with server.client(first.json()["token"]) as person:
        shape_of(await person.get("/auth/v1/sessions/current"), 401, "unauthorized")
    second = await login(server, "ada@example.com", reset.json()["password"])
    async with server.client(second.json()["token"]) as viewer:
        shape_of(await viewer.post("/v1/sandboxes", json={"template": "base"}), 403, "forbidden")
        assert (await client.patch(user, json={"disabled": True})).json()["disabled"]
        shape_of(await viewer.get("/v1/sandboxes"), 401, "unauthorized")
    assert "ada@example.com" in {one["email"] for one in (await client.get("/auth/v1/users")).json()["items"]}
    shape_of(await client.patch(user, json={}), 400, "invalid_request")


async def test_projects_have_quotas_that_hold(server: Server, client: httpx.AsyncClient) -> None:
    made = await client.post("/v1/projects", json={"name": "small", "quotas": {"max_sandboxes": 1}})
    assert made.status_code == 201, made.text
    project = made.json()
    token = await server.token("sandboxes:read", "sandboxes:write", project=project["id"])
    async with server.client(token) as holder:
        assert (await holder.post("/v1/sandboxes", json={"template": "base"})).status_code == 202
        refused = await holder.post("/v1/sandboxes", json={"template": "base"})
        assert shape_of(refused, 429, "rate_limited")["details"]["quota"]
        lifted = await client.patch(f"/v1/projects/{project['id']}", json={"quotas": {"max_sandboxes": None}})
        assert lifted.json()["quotas"]["max_sandboxes"] is None
        assert (await holder.post("/v1/sandboxes", json={"template": "base"})).status_code == 202


@pytest.mark.parametrize("end", ["9999-12-31T23:59:59-12:00", "9999-12-31T24:00:00Z"])
async def test_a_token_cannot_end_at_a_time_that_nobody_could_read_again(client: httpx.AsyncClient, end: str) -> None:
    body = {"name": "x", "scopes": ["sandboxes:read"], "expires_at": end}
    shape_of(await client.post("/auth/v1/tokens", json=body), 400, "invalid_request")
    last = await client.post("/auth/v1/tokens", json={**body, "expires_at": "9999-12-31T23:59:59Z"})
    assert last.status_code == 201, last.text
    assert (await client.get("/auth/v1/tokens")).status_code == 200

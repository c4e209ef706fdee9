"""The same request twice is done once, and answered twice."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.server.harness import Server, listening
from tests.server.test_error_shape import shape_of

from space.core.errors import CapacityUnavailable
from space.server.api import create_api
from space.testing.node import FakeNode

pytestmark = [pytest.mark.anyio, pytest.mark.live]
KEY = {"Idempotency-Key": "key-1"}
BASE = {"template": "base"}


async def count(client: httpx.AsyncClient) -> int:
    return len((await client.get("/v1/sandboxes")).json()["items"])


async def test_the_same_key_and_body_answer_what_was_answered(client: httpx.AsyncClient) -> None:
    first = await client.post("/v1/sandboxes", json=BASE, headers=KEY)
    again = await client.post("/v1/sandboxes", json=BASE, headers=KEY)
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.json() == first.json()
    assert again.headers["location"] == first.headers["location"]
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert await count(client) == 1


async def test_another_body_with_the_same_key_is_a_conflict(client: httpx.AsyncClient) -> None:
    await client.post("/v1/sandboxes", json=BASE, headers=KEY)
    answer = await client.post("/v1/sandboxes", json={**BASE, "metadata": {"a": "b"}}, headers=KEY)
    shape_of(answer, 409, "idempotency_conflict")
    assert await count(client) == 1


async def test_a_key_belongs_to_its_caller_and_its_path(server: Server, client: httpx.AsyncClient) -> None:
    first = await client.post("/v1/sandboxes", json=BASE, headers=KEY)
    async with server.client(await server.token("sandboxes:read", "sandboxes:write")) as other:
        second = await other.post("/v1/sandboxes", json=BASE, headers=KEY)
    assert second.json()["sandbox"]["id"] != first.json()["sandbox"]["id"]
    extended = await client.post(f"{first.headers['location']}/extend", json={"seconds": 60}, headers=KEY)
    assert extended.status_code == 200


async def test_scopes_are_checked_before_a_replay(server: Server, client: httpx.AsyncClient) -> None:
    await client.post("/v1/sandboxes", json=BASE, headers=KEY)
    async with server.client(await server.token("sandboxes:read")) as reader:
        shape_of(await reader.post("/v1/sandboxes", json=BASE, headers=KEY), 403, "forbidden")


async def test_two_at_the_same_time_are_done_once(client: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(client.post("/v1/sandboxes", json=BASE, headers=KEY) for _ in range(10)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["sandbox"]["id"] for answer in answers}) == 1
    assert await count(client) == 1


async def test_a_refusal_that_would_come_again_is_kept(client: httpx.AsyncClient) -> None:
    first = await client.post("/v1/sandboxes", json={"template": "nosuch"}, headers=KEY)
    again = await client.post("/v1/sandboxes", json={"template": "nosuch"}, headers=KEY)
    assert first.status_code == again.status_code == 404
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json()["error"]["code"] == "not_found"


async def test_a_retry_after_a_passing_failure_runs(server: Server, client: httpx.AsyncClient) -> None:
    failing = replace(server.services, sandboxes=_NoRoom())  # type: ignore[arg-type]
    async with listening(create_api(failing)) as (url,):
        answer = await client.post(f"{url}/v1/sandboxes", json=BASE, headers=KEY)
        shape_of(answer, 503, "capacity_unavailable")
    assert (await client.post("/v1/sandboxes", json=BASE, headers=KEY)).status_code == 202


class _NoRoom:
    async def create(self, *_: Any, **__: Any) -> Any:
        raise CapacityUnavailable("no node has room")


async def test_a_repeated_command_gets_the_same_process_and_a_fresh_token(
    server: Server, client: httpx.AsyncClient
) -> None:
    sandbox_id = await server.sandbox(client)
    body = {"argv": ["true"]}
    first = await client.post(f"/v1/sandboxes/{sandbox_id}/commands", json=body, headers=KEY)
    again = await client.post(f"/v1/sandboxes/{sandbox_id}/commands", json=body, headers=KEY)
    assert first.status_code == again.status_code == 201
    assert again.json()["process"]["id"] == first.json()["process"]["id"]
    assert again.json()["session"]["token"] != first.json()["session"]["token"]
    assert again.headers["idempotency-replayed"] == "true"
    assert len((await client.get(f"/v1/sandboxes/{sandbox_id}/processes")).json()["items"]) == 1


async def test_a_repeated_token_creation_names_the_token_and_shows_no_secret(client: httpx.AsyncClient) -> None:
    body = {"name": "ci", "scopes": ["sandboxes:read"]}
    first = await client.post("/auth/v1/tokens", json=body, headers=KEY)
    again = await client.post("/auth/v1/tokens", json=body, headers=KEY)
    assert first.status_code == 201
    error = shape_of(again, 409, "conflict")
    assert error["details"]["token_id"] == first.json()["id"]
    assert first.json()["token"] not in again.text


async def test_a_repeated_user_creation_names_the_user_and_shows_no_password(client: httpx.AsyncClient) -> None:
    body = {"email": "a@example.com"}
    first = await client.post("/auth/v1/users", json=body, headers=KEY)
    again = await client.post("/auth/v1/users", json=body, headers=KEY)
    assert shape_of(again, 409, "conflict")["details"]["user_id"] == first.json()["id"]
    assert first.json()["password"] not in again.text


async def test_no_secret_is_written_to_the_database(server: Server, client: httpx.AsyncClient) -> None:
    sandbox_id = await server.sandbox(client)
    token = await client.post("/auth/v1/tokens", json={"name": "x", "scopes": ["sandboxes:read"]}, headers=KEY)
    command = await client.post(f"/v1/sandboxes/{sandbox_id}/commands", json={"argv": ["true"]}, headers=KEY)
    user = await client.post("/auth/v1/users", json={"email": "a@example.com"}, headers=KEY)
    secrets = [token.json()["token"], command.json()["session"]["token"], user.json()["password"]]
    directory = server.services.settings.data_dir
    stored = b"".join(path.read_bytes() for path in directory.glob("space.db*"))
    assert not [secret for secret in secrets if secret.encode() in stored]


async def test_a_repeated_kill_and_signal_are_answered(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client)
    made = await client.post(f"/v1/sandboxes/{sandbox_id}/commands", json={"argv": ["sleep", "9"], "start": "now"})
    process = f"/v1/sandboxes/{sandbox_id}/processes/{made.json()['process']['id']}"
    for _ in range(2):
        assert (await client.post(f"{process}/signal", json={"signal": "SIGUSR1"}, headers=KEY)).status_code == 200
        assert (await client.post(f"{process}/kill", headers=KEY)).status_code == 200
    (session,) = node.sessions.values()
    assert session.signals == ["SIGUSR1", "SIGKILL"]


async def test_a_repeated_exec_answers_with_the_same_output(whole: Server, whole_client: httpx.AsyncClient) -> None:
    sandbox_id = await whole.sandbox(whole_client)
    body = {"shell": "echo $$; date +%N"}
    first = await whole_client.post(f"/v1/sandboxes/{sandbox_id}/exec", json=body, headers=KEY)
    again = await whole_client.post(f"/v1/sandboxes/{sandbox_id}/exec", json=body, headers=KEY)
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"


async def test_long_output_is_answered_again_without_being_stored_twice(
    whole: Server, whole_client: httpx.AsyncClient
) -> None:
    sandbox_id = await whole.sandbox(whole_client)
    body = {"shell": "seq -f marked-%g 1 30000; date +%N"}
    first = await whole_client.post(f"/v1/sandboxes/{sandbox_id}/exec", json=body, headers=KEY)
    again = await whole_client.post(f"/v1/sandboxes/{sandbox_id}/exec", json=body, headers=KEY)
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == first.json()
    directory = whole.services.settings.data_dir
    assert not [path for path in directory.glob("space.db*") if b"marked-29999" in path.read_bytes()]


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "\xe4"])
async def test_a_key_of_no_acceptable_form_is_refused(client: httpx.AsyncClient, key: str) -> None:
    answer = await client.post("/v1/sandboxes", json=BASE, headers={"Idempotency-Key": key.encode("latin-1")})
    assert shape_of(answer, 400, "invalid_request")["details"]["field"] == "Idempotency-Key"
    assert await count(client) == 0

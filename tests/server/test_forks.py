"""Forks over HTTP: for each child a sandbox or a typed error, and a source that stays as it is."""

from typing import Any

import httpx
import pytest
from tests.server.harness import Server
from tests.server.test_error_shape import shape_of

from space.core.account import IdempotencyRef
from space.core.errors import RuntimeFailed
from space.core.ids import SandboxId
from space.testing.node import FakeNode

pytestmark = [pytest.mark.anyio, pytest.mark.live]

WAIT = {"Prefer": "wait=20"}


async def fork(
    client: httpx.AsyncClient, sandbox_id: str, body: dict[str, Any] | None = None, **headers: str
) -> httpx.Response:
    return await client.post(f"/v1/sandboxes/{sandbox_id}/fork", json=body, headers=headers)


async def test_children_run_with_what_the_source_remembers_when_they_are_waited_for(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client, metadata={"task": "42"}, env={"K": "V"})
    node.memory[SandboxId(sandbox_id)]["learnt"] = 7
    answer = await fork(client, sandbox_id, {"count": 3}, **WAIT)
    assert answer.status_code == 201, answer.text
    body = answer.json()
    assert (body["operation"]["kind"], body["operation"]["status"]) == ("fork", "succeeded")
    assert answer.headers["location"] == f"/v1/operations/{body['operation']['id']}"
    children = [child["sandbox"] for child in body["children"]]
    assert [child["state"] for child in children] == ["running"] * 3
    assert len({child["id"] for child in children} | {sandbox_id}) == 4
    for child in children:
        assert (child["metadata"], child["env_keys"]) == ({"task": "42"}, ["K"])
        assert node.memory[SandboxId(child["id"])]["learnt"] == 7
    assert (await client.get(f"/v1/sandboxes/{sandbox_id}")).json()["state"] == "running"


async def test_what_is_given_replaces_what_the_source_has(server: Server, client: httpx.AsyncClient) -> None:
    sandbox_id = await server.sandbox(client, metadata={"task": "42"}, env={"K": "V"})
    life = {"idle_seconds": 60, "on_idle": "delete"}
    wanted = {"metadata": {"task": "43"}, "env": {"A": "B"}, "auto_lifecycle": life}
    (child,) = (await fork(client, sandbox_id, wanted)).json()["children"]
    assert child["sandbox"]["metadata"] == {"task": "43"}
    assert child["sandbox"]["env_keys"] == ["A"]
    assert child["sandbox"]["auto_lifecycle"]["on_idle"] == "delete"


async def test_without_waiting_the_children_are_on_their_way(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client)
    gate = node.hold("checkpoint")
    answer = await fork(client, sandbox_id)
    assert answer.status_code == 202
    (child,) = answer.json()["children"]
    assert (child["sandbox"]["state"], child["operation"]["status"]) == ("creating", "queued")
    gate.open()
    path = f"/v1/operations/{child['operation']['id']}"
    assert (await client.get(path, params={"wait": 20})).json()["status"] == "succeeded"


async def test_each_child_that_a_quota_forbids_is_an_error_of_its_own(
    server: Server, client: httpx.AsyncClient
) -> None:
    """Case 6 of the reported faults: room for three of five."""
    sandbox_id = await server.sandbox(client)
    (project,) = (await client.get("/v1/projects")).json()["items"]
    await client.patch(f"/v1/projects/{project['id']}", json={"quotas": {"max_sandboxes": 4}})
    answer = await fork(client, sandbox_id, {"count": 5}, **WAIT)
    assert answer.status_code == 201, answer.text
    children = answer.json()["children"]
    assert [child["sandbox"]["state"] for child in children if "sandbox" in child] == ["running"] * 3
    errors = [child["error"] for child in children if "error" in child]
    assert [(error["code"], error["details"]["quota"], error["retryable"]) for error in errors] == [
        ("rate_limited", "sandboxes", True)
    ] * 2
    assert (await client.get(f"/v1/sandboxes/{sandbox_id}")).json()["state"] == "running"
    refused = await fork(client, sandbox_id, {"count": 2})
    assert shape_of(refused, 429, "rate_limited")["details"]["quota"] == "sandboxes"


async def test_a_source_that_cannot_be_saved_fails_its_children_and_goes_on(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client)
    node.fail("checkpoint", *[RuntimeFailed("no")] * 9)
    answer = await fork(client, sandbox_id, {"count": 2})
    path = f"/v1/operations/{answer.json()['operation']['id']}"
    assert (await client.get(path, params={"wait": 30})).json()["status"] == "failed"
    for child in answer.json()["children"]:
        found = (await client.get(f"/v1/operations/{child['operation']['id']}", params={"wait": 20})).json()
        assert found["status"] == "failed"
        assert (await client.get(f"/v1/sandboxes/{child['sandbox']['id']}")).json()["state"] == "failed"
    assert (await client.get(f"/v1/sandboxes/{sandbox_id}")).json()["state"] == "running"


async def test_the_same_key_makes_the_children_once(server: Server, client: httpx.AsyncClient) -> None:
    sandbox_id = await server.sandbox(client)
    first = await fork(client, sandbox_id, {"count": 2}, **WAIT, **{"Idempotency-Key": "k"})
    again = await fork(client, sandbox_id, {"count": 2}, **WAIT, **{"Idempotency-Key": "k"})
    assert [child["sandbox"]["id"] for child in again.json()["children"]] == [
        child["sandbox"]["id"] for child in first.json()["children"]
    ]
    assert again.headers["idempotency-replayed"] == "true"
    assert len((await client.get("/v1/sandboxes")).json()["items"]) == 3


async def test_an_answer_that_was_lost_is_made_again_from_what_was_recorded(
    server: Server, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash between the commit and the answer."""
    sandbox_id = await server.sandbox(client)
    (project,) = (await client.get("/v1/projects")).json()["items"]
    await client.patch(f"/v1/projects/{project['id']}", json={"quotas": {"max_sandboxes": 3}})

    async def lose(ref: IdempotencyRef, **_: Any) -> None:
        await server.services.idempotency.abandon(ref)

    monkeypatch.setattr(server.services.idempotency, "complete", lose)
    first = await fork(client, sandbox_id, {"count": 3}, **{"Idempotency-Key": "k"})
    again = await fork(client, sandbox_id, {"count": 3}, **WAIT, **{"Idempotency-Key": "k"})
    assert again.headers["idempotency-replayed"] == "true"
    made = [[child["sandbox"]["id"] for child in one.json()["children"][:2]] for one in (first, again)]
    assert made[0] == made[1]
    assert [child["sandbox"]["state"] for child in again.json()["children"][:2]] == ["running"] * 2
    assert again.json()["children"][2]["error"]["code"] == "conflict"
    assert len((await client.get("/v1/sandboxes")).json()["items"]) == 3


@pytest.mark.parametrize(
    "body", [{"count": 0}, {"count": 101}, {"count": "2"}, {"template": "base"}, {"env": {"": "x"}}]
)
async def test_a_fork_that_cannot_be_is_refused(shared_client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    answer = await fork(shared_client, "sbx06d1q8vg3rq5n7h2c4f9k0e8s0", body)
    shape_of(answer, 400, "invalid_request")


async def test_a_suspended_source_is_forked_as_it_rests(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client)
    node.memory[SandboxId(sandbox_id)]["learnt"] = 7
    await client.post(f"/v1/sandboxes/{sandbox_id}/suspend", headers=WAIT)
    answer = await fork(client, sandbox_id, {"count": 1}, **WAIT)
    (child,) = answer.json()["children"]
    assert child["sandbox"]["state"] == "running"
    assert node.memory[SandboxId(child["sandbox"]["id"])]["learnt"] == 7
    assert (await client.get(f"/v1/sandboxes/{sandbox_id}")).json()["state"] == "suspended"

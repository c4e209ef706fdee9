"""Snapshots over HTTP: taken, listed, started from, deleted; and whose they are."""

from typing import Any

import httpx
import pytest
from tests.server.harness import Server
from tests.server.test_error_shape import shape_of

from space.core.ids import SandboxId
from space.testing.node import FakeNode

pytestmark = [pytest.mark.anyio, pytest.mark.live]

WAIT = {"Prefer": "wait=20"}


async def take(client: httpx.AsyncClient, sandbox_id: str, name: str | None = None) -> dict[str, Any]:
    """Take a snapshot and wait until it is durable."""
    body = None if name is None else {"name": name}
    answer = await client.post(f"/v1/sandboxes/{sandbox_id}/snapshots", json=body, headers=WAIT)
    assert answer.status_code == 201, answer.text
    snapshot: dict[str, Any] = answer.json()["snapshot"]
    assert answer.headers["location"] == f"/v1/snapshots/{snapshot['id']}"
    assert answer.json()["operation"]["snapshot_id"] == snapshot["id"]
    return snapshot


async def test_a_snapshot_is_durable_while_the_sandbox_goes_on(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client)
    snapshot = await take(client, sandbox_id, "trained")
    assert (snapshot["name"], snapshot["state"], snapshot["purpose"]) == ("trained", "ready", "named")
    assert snapshot["ready_at"] >= snapshot["created_at"]
    assert (await client.get(f"/v1/snapshots/{snapshot['id']}")).json() == snapshot
    sandbox = (await client.get(f"/v1/sandboxes/{sandbox_id}")).json()
    assert (sandbox["state"], sandbox["restorable"], sandbox["snapshot_id"]) == ("running", True, snapshot["id"])


async def test_a_new_sandbox_goes_on_from_a_snapshot_also_when_its_source_is_gone(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client, resources={"memory_mib": 256})
    node.memory[SandboxId(sandbox_id)]["learnt"] = 7
    snapshot = await take(client, sandbox_id)
    await client.delete(f"/v1/sandboxes/{sandbox_id}", headers=WAIT)
    made = await server.sandbox(client, template=snapshot["id"])
    assert node.memory[SandboxId(made)]["learnt"] == 7
    shown = (await client.get(f"/v1/sandboxes/{made}")).json()
    assert shown["resources"]["memory_mib"] == 256
    assert shown["template"] == {"name": snapshot["id"], "digest": snapshot["template"]["digest"]}


async def test_resources_other_than_the_snapshots_are_refused(server: Server, client: httpx.AsyncClient) -> None:
    snapshot = await take(client, await server.sandbox(client))
    body = {"template": snapshot["id"], "resources": {"memory_mib": 1024}}
    error = shape_of(await client.post("/v1/sandboxes", json=body), 400, "invalid_request")
    assert error["details"]["field"] == "resources"


async def test_one_that_is_still_uploaded_is_no_beginning(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client)
    gate = node.hold("upload")
    answer = await client.post(f"/v1/sandboxes/{sandbox_id}/snapshots", json={})
    assert (answer.status_code, answer.json()["snapshot"]["state"]) == (202, "uploading")
    body = {"template": answer.json()["snapshot"]["id"]}
    shape_of(await client.post("/v1/sandboxes", json=body), 409, "failed_precondition")
    gate.open()
    path = f"/v1/operations/{answer.json()['operation']['id']}"
    assert (await client.get(path, params={"wait": 20})).json()["status"] == "succeeded"
    assert (await client.post("/v1/sandboxes", json=body)).status_code == 202


async def test_snapshots_are_listed_oldest_first_in_pages_and_by_sandbox(
    server: Server, client: httpx.AsyncClient
) -> None:
    one, two = await server.sandbox(client), await server.sandbox(client)
    taken = [(await take(client, sandbox_id))["id"] for sandbox_id in (one, two, one)]
    await client.post(f"/v1/sandboxes/{two}/suspend", headers=WAIT)  # its own moment is nobody's to list
    seen: list[str] = []
    cursor = None
    while True:
        params = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = (await client.get("/v1/snapshots", params=params)).json()
        seen += [item["id"] for item in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == taken
    of_one = (await client.get("/v1/snapshots", params={"sandbox": one})).json()["items"]
    assert [item["id"] for item in of_one] == [taken[0], taken[2]]
    shape_of(await client.get("/v1/snapshots", params={"sandbox": "x"}), 400, "invalid_request")


async def test_a_deleted_snapshot_is_no_beginning_any_more(server: Server, client: httpx.AsyncClient) -> None:
    sandbox_id = await server.sandbox(client)
    snapshot = await take(client, sandbox_id)
    await client.delete(f"/v1/sandboxes/{sandbox_id}", headers=WAIT)
    assert (await client.delete(f"/v1/snapshots/{snapshot['id']}")).status_code == 204
    assert (await client.get("/v1/snapshots")).json()["items"] == []
    refused = await client.post("/v1/sandboxes", json={"template": snapshot["id"]})
    assert refused.status_code in (404, 409)


async def test_the_moment_that_a_suspended_sandbox_rests_in_is_nobodys_to_delete(
    server: Server, client: httpx.AsyncClient
) -> None:
    sandbox_id = await server.sandbox(client)
    operation = (await client.post(f"/v1/sandboxes/{sandbox_id}/suspend", headers=WAIT)).json()
    refused = await client.delete(f"/v1/snapshots/{operation['snapshot_id']}")
    assert refused.status_code in (404, 409)
    assert (await client.post(f"/v1/sandboxes/{sandbox_id}/wake", headers=WAIT)).status_code == 200


async def test_a_snapshot_of_another_project_is_not_found(server: Server, client: httpx.AsyncClient) -> None:
    snapshot = await take(client, await server.sandbox(client))
    async with server.client(await server.other_project()) as stranger:
        assert (await stranger.get("/v1/snapshots")).json()["items"] == []
        for answer in (
            await stranger.get(f"/v1/snapshots/{snapshot['id']}"),
            await stranger.delete(f"/v1/snapshots/{snapshot['id']}"),
            await stranger.post("/v1/sandboxes", json={"template": snapshot["id"]}),
        ):
            shape_of(answer, 404, "not_found")


async def test_the_same_key_takes_one_snapshot(server: Server, client: httpx.AsyncClient) -> None:
    sandbox_id = await server.sandbox(client)
    headers = {"Idempotency-Key": "k", **WAIT}
    path = f"/v1/sandboxes/{sandbox_id}/snapshots"
    first, again = [await client.post(path, json={"name": "x"}, headers=headers) for _ in range(2)]
    assert again.json()["snapshot"]["id"] == first.json()["snapshot"]["id"]
    assert len((await client.get("/v1/snapshots")).json()["items"]) == 1

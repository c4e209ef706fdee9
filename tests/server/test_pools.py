"""Warm pools over HTTP."""

import asyncio
from typing import Any

import httpx
import pytest
from tests.server.harness import Server
from tests.server.test_error_shape import shape_of

pytestmark = pytest.mark.anyio


async def the_pool(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/v1/pools")
    assert answer.status_code == 200, answer.text
    (pool,) = answer.json()["items"]
    assert isinstance(pool, dict)
    return pool


async def filled(client: httpx.AsyncClient, count: int) -> dict[str, Any]:
    """Wait until so many machines are ready."""
    async with asyncio.timeout(20):
        while (pool := await the_pool(client))["ready"] != count:  # noqa: ASYNC110  nobody tells of it
            await asyncio.sleep(0.02)
    return pool


async def test_a_pool_is_set_filled_used_and_deleted(client: httpx.AsyncClient) -> None:
    answer = await client.put("/v1/pools", json={"template": "base", "min": 2})
    assert answer.status_code == 200, answer.text
    assert answer.json()["max"] == 2
    pool = await filled(client, 2)
    assert (pool["hits"], pool["misses"], pool["runtime"], pool["reason"]) == (0, 0, "fake", None)
    created = await client.post("/v1/sandboxes", json={"template": "base"}, headers={"Prefer": "wait=10"})
    assert created.json()["sandbox"]["state"] == "running"
    pool = await filled(client, 2)
    assert (pool["hits"], pool["misses"]) == (1, 0)
    assert pool["refill_seconds"]["mean"] >= 0
    assert (await client.delete("/v1/pools/base")).status_code == 204
    assert (await client.get("/v1/pools")).json()["items"] == []
    shape_of(await client.delete("/v1/pools/base"), 404, "not_found")


async def test_setting_it_again_changes_its_size_and_another_size_of_machine_is_another_pool(
    client: httpx.AsyncClient,
) -> None:
    await client.put("/v1/pools", json={"template": "base", "min": 1})
    await client.put("/v1/pools", json={"template": "base", "min": 0, "max": 4})
    await client.put("/v1/pools", json={"template": "base", "min": 1, "resources": {"memory_mib": 256}})
    items = (await client.get("/v1/pools")).json()["items"]
    assert [(item["resources"]["memory_mib"], item["min"], item["max"]) for item in items] == [(256, 1, 1), (512, 0, 4)]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"template": "base"}, "min"),
        ({"template": "base", "min": -1}, "min"),
        ({"template": "base", "min": 1001}, "min"),
        ({"template": "base", "min": 3, "max": 2}, "max"),
        ({"template": "../base", "min": 1}, "template"),
        ({"template": "base", "min": 1, "resources": {"memory_mib": 1}}, "memory_mib"),
        ({"template": "base", "min": 1, "size": 1}, "size"),
    ],
)
async def test_what_cannot_be_a_pool_is_refused_by_its_field(
    client: httpx.AsyncClient, body: dict[str, Any], field: str
) -> None:
    answer = await client.put("/v1/pools", json=body)
    error = shape_of(answer, 400, "invalid_request")
    assert field in str(error["details"].get("field")) + error["message"]


async def test_a_template_or_runtime_that_is_not_there_is_said_so(client: httpx.AsyncClient) -> None:
    shape_of(await client.put("/v1/pools", json={"template": "nosuch", "min": 1}), 404, "not_found")
    body = {"template": "base", "min": 1, "runtime": "qemu"}
    shape_of(await client.put("/v1/pools", json=body), 422, "unsupported")


async def test_changes_of_pools_are_in_the_audit_log(client: httpx.AsyncClient) -> None:
    await client.put("/v1/pools", json={"template": "base", "min": 1})
    await client.delete("/v1/pools/base")
    entries = (await client.get("/v1/audit", params={"target": "base"})).json()["items"]
    assert [entry["action"] for entry in entries] == ["deletePool", "setPool"]
    assert entries[1]["details"]["min"] == 1


async def test_pools_belong_to_no_project_and_only_admins_see_them(server: Server, client: httpx.AsyncClient) -> None:
    await client.put("/v1/pools", json={"template": "base", "min": 1})
    async with server.client(await server.other_project()) as stranger:
        shape_of(await stranger.get("/v1/pools"), 403, "forbidden")
        shape_of(await stranger.delete("/v1/pools/base"), 403, "forbidden")

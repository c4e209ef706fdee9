"""Many creates at once on a warm pool: each machine serves one of them, the rest start or are told why not."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.server.harness import serving

from space.core.node import NodeFacts
from space.testing.node import FakeNode

pytestmark = pytest.mark.anyio

CREATES, WARM, MEMORY_MIB = 200, 50, 512


class FiniteNode(FakeNode):
    """A node that says how much of its memory is left."""

    async def facts(self) -> NodeFacts:
        facts = await super().facts()
        promised = MEMORY_MIB * (len(self.machines) + len(self.pool))
        return replace(facts, memory_available_mib=max(0, self.memory_mib - promised))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("room", [CREATES + WARM, 120], ids=["room for all", "room for 120"])
async def test_200_creates_on_a_pool_of_50_use_each_warm_machine_once_and_the_rest_run_or_are_told_why(
    tmp_path: Path, room: int
) -> None:
    node = FiniteNode(memory_mib=room * MEMORY_MIB)
    limits = httpx.Limits(max_connections=CREATES)
    async with (
        serving(tmp_path, node, pool_memory_mib=WARM * MEMORY_MIB) as server,
        server.client(timeout=60, limits=limits) as client,
    ):
        assert (await client.put("/v1/pools", json={"template": "base", "min": WARM})).status_code == 200
        async with asyncio.timeout(30):
            while (await the_pool(client))["ready"] < WARM:  # noqa: ASYNC110  nobody tells of it
                await asyncio.sleep(0.05)
        warm = set(node.pool)
        assert len(warm) == WARM

        async def create() -> httpx.Response:
            return await client.post("/v1/sandboxes", json={"template": "base"}, headers={"Prefer": "wait=50"})

        answers = await asyncio.gather(*(create() for _ in range(CREATES)))
        made = [answer.json()["sandbox"] for answer in answers if answer.status_code == 201]
        refused = [answer.json() for answer in answers if answer.status_code != 201]
        assert {sandbox["state"] for sandbox in made} == {"running"}
        codes = Counter(error["error"]["code"] for error in refused)
        assert set(codes) <= {"capacity_unavailable"}, codes
        assert all(error["error"]["retryable"] for error in refused)
        if room < CREATES:
            assert WARM <= len(made) <= room
        else:
            assert len(made) == CREATES
        claimed, served = set(node.bound), {ref.sandbox_id for ref in node.bound.values()}
        assert warm <= claimed, "none of those that were ready is passed over"
        assert len(served) == len(claimed), "and none serves two"
        assert served <= {each["id"] for each in made}
        assert sorted(ref.sandbox_id for ref in node.started) == sorted(each["id"] for each in made), "one each"
        pool = await the_pool(client)
        assert (pool["hits"], pool["hits"] + pool["misses"]) == (len(claimed), len(made)), "none is claimed in vain"


async def the_pool(client: httpx.AsyncClient) -> dict[str, int]:
    (pool,) = (await client.get("/v1/pools")).json()["items"]
    assert isinstance(pool, dict)
    return pool

"""Every list takes `limit` and `cursor`, the short ones too."""

from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.server.calls import api_calls
from tests.server.harness import serving
from tests.server.test_error_shape import shape_of

from space.testing.node import FakeNode
from space.testing.templates import BASE, FakeTemplates

pytestmark = [pytest.mark.anyio, pytest.mark.live]


def test_every_list_declares_them() -> None:
    lists = [
        call.endpoint
        for call in api_calls()
        if call.method == "GET" and "next_cursor" in str(call.endpoint.document.answers)
    ]
    assert len(lists) >= 8
    for endpoint in lists:
        declared = endpoint.binding.query_fields
        assert {"limit", "cursor"} <= declared, endpoint.path


async def test_templates_come_in_pages(tmp_path: Path, node: FakeNode) -> None:
    made = [replace(BASE, name=name, tag=tag) for name, tag in (("c", "x"), ("a", "y"), ("a", "x"))]
    async with serving(tmp_path, node, templates=FakeTemplates(*made)) as server, server.client() as client:
        found: list[str] = []
        query: dict[str, str | int] = {"limit": 2}
        while True:
            page = (await client.get("/v1/templates", params=query)).json()
            found += [f"{item['name']}:{item['tag']}" for item in page["items"]]
            if page["next_cursor"] is None:
                break
            query["cursor"] = page["next_cursor"]
        assert found == ["a:x", "a:y", "c:x"]
        shape_of(await client.get("/v1/templates", params={"cursor": "?"}), 400, "invalid_request")


async def test_the_nodes_are_one_page(client: httpx.AsyncClient) -> None:
    assert len((await client.get("/v1/nodes", params={"limit": 1})).json()["items"]) == 1
    shape_of(await client.get("/v1/nodes", params={"cursor": "x"}), 400, "invalid_request")
    refused = shape_of(await client.patch(f"/v1/projects/{'prj' + '0' * 26}", json={}), 400, "invalid_request")
    assert "value error" not in refused["message"].lower()

"""Sandboxes over HTTP: lists, fields, waiting, timelines, concurrency, and callers who leave."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import httpx
import pytest
from tests.server.harness import Server, serving, sse_events
from tests.server.test_error_shape import shape_of

from space.config import ConcurrencyMode
from space.server.v1 import sandboxes
from space.testing.node import FakeNode

pytestmark = [pytest.mark.anyio, pytest.mark.live]


@pytest.fixture
async def many(server: Server, client: httpx.AsyncClient) -> list[str]:
    """Five sandboxes, oldest first; the second and fourth belong to the task `even`."""
    return [await server.sandbox(client, metadata={"task": "even" if n % 2 else "odd", "n": str(n)}) for n in range(5)]


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that tells nobody."""
    with anyio.fail_after(10):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def ids(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["items"]]


async def test_a_list_goes_page_by_page_in_either_order(client: httpx.AsyncClient, many: list[str]) -> None:
    for order, expected in (("desc", many[::-1]), ("asc", many)):
        seen: list[str] = []
        cursor = None
        while True:
            params = {"limit": "2", "order": order} | ({"cursor": cursor} if cursor else {})
            answer = await client.get("/v1/sandboxes", params=params)
            seen += ids(answer)
            cursor = answer.json()["next_cursor"]
            if cursor is None:
                break
        assert seen == expected


async def test_a_list_is_filtered(client: httpx.AsyncClient, many: list[str]) -> None:
    even = await client.get("/v1/sandboxes", params={"metadata.task": "even", "order": "asc"})
    assert ids(even) == [many[1], many[3]]
    one = await client.get("/v1/sandboxes", params={"metadata.task": "even", "metadata.n": "3"})
    assert ids(one) == [many[3]]
    assert len(ids(await client.get("/v1/sandboxes", params={"state": "running", "template": "base"}))) == 5
    assert ids(await client.get("/v1/sandboxes", params={"state": "paused"})) == []
    assert ids(await client.get("/v1/sandboxes", params={"created_after": "2999-01-01T00:00:00Z"})) == []
    assert len(ids(await client.get("/v1/sandboxes", params={"created_before": "2999-01-01T00:00:00+01:00"}))) == 5


async def test_fields_select_what_is_shown(client: httpx.AsyncClient, many: list[str]) -> None:
    listed = await client.get("/v1/sandboxes", params={"fields": "id,state", "limit": 1})
    assert listed.json()["items"] == [{"id": many[-1], "state": "running"}]
    shown = await client.get(f"/v1/sandboxes/{many[0]}", params={"fields": "metadata"})
    assert shown.json() == {"metadata": {"task": "odd", "n": "0"}}


async def test_what_is_shown_follows_each_change(client: httpx.AsyncClient, many: list[str]) -> None:
    path = f"/v1/sandboxes/{many[0]}"
    before = (await client.get(path)).json()
    patched = await client.patch(path, json={"metadata": {"a": "b"}})
    assert patched.json()["metadata"] == {"a": "b"}
    assert (await client.get(path)).json()["metadata"] == {"a": "b"}
    life = await client.patch(path, json={"auto_lifecycle": {"idle_seconds": 60, "on_idle": "delete"}})
    assert life.json()["auto_lifecycle"]["on_idle"] == "delete"
    assert life.json()["metadata"] == {"a": "b"}
    assert {name: value for name, value in (await client.get(path)).json().items() if name == "created_at"} == {
        "created_at": before["created_at"]
    }
    await client.delete(path)
    assert (await client.get(path)).json()["state"] in ("deleting", "deleted")


async def test_secrets_in_env_are_never_shown(server: Server, client: httpx.AsyncClient) -> None:
    sandbox_id = await server.sandbox(client, env={"TOKEN": "s3cret-value"})
    for answer in (
        await client.get(f"/v1/sandboxes/{sandbox_id}"),
        await client.get("/v1/sandboxes"),
        await client.get(f"/v1/sandboxes/{sandbox_id}/events"),
        await client.get("/v1/audit"),
    ):
        assert "s3cret-value" not in answer.text
    assert (await client.get(f"/v1/sandboxes/{sandbox_id}")).json()["env_keys"] == ["TOKEN"]


@pytest.mark.parametrize("prefer", ["wait=x", "wait=-1", "respond-async", "", "wait"])
async def test_a_preference_that_cannot_be_read_is_ignored(client: httpx.AsyncClient, prefer: str) -> None:
    answer = await client.post("/v1/sandboxes", json={"template": "base"}, headers={"Prefer": prefer})
    assert answer.status_code == 202


async def test_waiting_ends_in_202_when_it_takes_longer(client: httpx.AsyncClient, node: FakeNode) -> None:
    node.gate = asyncio.Event()
    answer = await client.post("/v1/sandboxes", json={"template": "base"}, headers={"Prefer": "wait=0.2"})
    assert answer.status_code == 202
    assert answer.json()["sandbox"]["state"] == "creating"
    assert answer.headers["preference-applied"] == "wait=0.2"
    path = f"/v1/operations/{answer.json()['operation']['id']}"
    assert (await client.get(path, params={"wait": 0.1})).json()["status"] == "running"
    waiting = asyncio.create_task(client.get(path, params={"wait": 20}))
    await asyncio.sleep(0.05)
    node.gate.set()
    assert (await waiting).json()["status"] == "succeeded"


@pytest.mark.parametrize(
    ("body", "feature"),
    [
        ({"network_policy": {"version": 1, "default_action": "allow"}}, "network_policy"),
        ({"network_policy": {"version": 1, "allow": [{"domain": "a.test"}]}}, "network_policy"),
        ({"egress_profile": "package-registries"}, "egress_profile"),
    ],
)
async def test_what_needs_the_gateway_is_refused_by_name(
    client: httpx.AsyncClient, body: dict[str, object], feature: str
) -> None:
    answer = await client.post("/v1/sandboxes", json={"template": "base", **body})
    assert shape_of(answer, 422, "unsupported")["details"]["feature"] == feature


async def test_denying_everything_is_accepted(client: httpx.AsyncClient) -> None:
    policy = {"version": 1, "default_action": "deny", "deny": [{"domain": "*.internal.example"}]}
    answer = await client.post("/v1/sandboxes", json={"template": "base", "network_policy": policy})
    assert answer.status_code == 202


@pytest.mark.parametrize(
    ("route", "body", "feature"),
    [("code", {"code": "6*7"}, "code"), ("network-policy/explain", {"url": "https://a.test/"}, "network_policy")],
)
async def test_what_comes_later_is_refused_by_name(
    server: Server, client: httpx.AsyncClient, route: str, body: dict[str, object] | None, feature: str
) -> None:
    sandbox_id = await server.sandbox(client)
    answer = await client.post(f"/v1/sandboxes/{sandbox_id}/{route}", json=body)
    assert shape_of(answer, 422, "unsupported")["details"]["feature"] == feature


async def test_a_timeline_is_read_in_pages_and_followed_live(server: Server, client: httpx.AsyncClient) -> None:
    sandbox_id = await server.sandbox(client)
    path = f"/v1/sandboxes/{sandbox_id}/events"
    first = (await client.get(path, params={"limit": 1})).json()
    assert first["items"][0]["type"] == "sandbox.created"
    rest = (await client.get(path, params={"cursor": first["next_cursor"]})).json()
    assert [event["seq"] for event in first["items"] + rest["items"]] == list(range(1, 2 + len(rest["items"])))
    last = rest["items"][-1]["seq"]
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last)}
    async with client.stream("GET", path, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = sse_events(answer)
        await client.delete(f"/v1/sandboxes/{sandbox_id}")
        with anyio.fail_after(10):
            event = await anext(events)
    assert event.id == str(last + 1)
    assert event.event == event.data["type"]
    refused = await client.get(path, headers={"Accept": "image/png"})
    shape_of(refused, 406, "invalid_request")


async def test_a_sandbox_is_measured(server: Server, client: httpx.AsyncClient) -> None:
    sandbox_id = await server.sandbox(client)
    shown = (await client.get(f"/v1/sandboxes/{sandbox_id}/metrics")).json()
    assert shown["now"]["memory_bytes"] == 1 << 20
    assert shown["generation"] == 1


@pytest.fixture
async def strict(tmp_path: Path, node: FakeNode) -> AsyncIterator[Server]:
    async with serving(tmp_path, node, api_concurrency=2, api_concurrency_mode=ConcurrencyMode.ENFORCE) as made:
        yield made


async def test_one_request_too_many_is_refused_and_the_next_is_not(strict: Server, node: FakeNode) -> None:
    node.gate = asyncio.Event()
    async with strict.client() as client:
        waiting = [
            asyncio.create_task(client.post("/v1/sandboxes", json={"template": "base"}, headers={"Prefer": "wait=20"}))
            for _ in range(2)
        ]
        await node.entered.wait()
        await asyncio.sleep(0.2)
        refused = await client.get("/v1/sandboxes")
        assert shape_of(refused, 429, "rate_limited")["details"] == {"quota": "concurrency", "limit": 2}
        async with strict.client(await other_token(strict)) as other:
            assert (await other.get("/v1/sandboxes")).status_code == 200
        node.gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {201}
        assert (await client.get("/v1/sandboxes")).status_code == 200


async def other_token(server: Server) -> str:
    """Make a token as another client would: the administrator's own requests are used up."""
    login = await server.services.accounts.login(
        server.admin_email, server.admin_password, address=None, request_id="req-1"
    )
    return login.secret


async def test_a_caller_of_exec_that_leaves_kills_the_program(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client)
    with pytest.raises(httpx.ReadTimeout):
        await client.post(f"/v1/sandboxes/{sandbox_id}/exec", json={"argv": ["sleep", "600"]}, timeout=0.3)
    await until(lambda: any("SIGKILL" in session.signals for session in node.sessions.values()))
    (process,) = (await client.get(f"/v1/sandboxes/{sandbox_id}/processes")).json()["items"]
    assert process["signal"] == "SIGKILL"


async def test_a_caller_of_exec_with_a_key_may_come_back(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client)
    request = {"json": {"argv": ["slow"]}, "headers": {"Idempotency-Key": "back"}}
    with pytest.raises(httpx.ReadTimeout):
        await client.post(f"/v1/sandboxes/{sandbox_id}/exec", timeout=0.3, **request)
    (session_id,) = node.sessions
    node.write_output(session_id, b"done")
    node.exit_process(session_id)
    answer = await client.post(f"/v1/sandboxes/{sandbox_id}/exec", **request)
    assert answer.json()["stdout"] == "done"
    assert len(node.sessions) == 1


async def test_output_that_is_no_utf8_is_exact_in_base64(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client)
    body = {"argv": ["x"], "encoding": "base64"}
    running = asyncio.create_task(client.post(f"/v1/sandboxes/{sandbox_id}/exec", json=body))
    await until(lambda: bool(node.sessions))
    (session_id,) = node.sessions
    node.write_output(session_id, b"\xff\x00")
    node.exit_process(session_id)
    assert (await running).json()["stdout"] == "/wA="


async def test_writing_nothing_to_what_cannot_be_written_to_is_an_error_too(
    server: Server, client: httpx.AsyncClient
) -> None:
    sandbox_id = await server.sandbox(client)
    body = {"argv": ["true"], "start": "now"}
    made = (await client.post(f"/v1/sandboxes/{sandbox_id}/commands", json=body)).json()["process"]["id"]
    for process, status, code in ((made, 409, "failed_precondition"), (f"prc{made[3:-2]}g0", 404, "not_found")):
        answer = await client.put(f"/v1/sandboxes/{sandbox_id}/processes/{process}/stdin", content=b"")
        shape_of(answer, status, code)


async def test_stdin_is_passed_on_piece_by_piece_and_closed(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client)
    body = {"argv": ["cat"], "stdin": "pipe", "start": "now"}
    made = await client.post(f"/v1/sandboxes/{sandbox_id}/commands", json=body)
    process = f"/v1/sandboxes/{sandbox_id}/processes/{made.json()['process']['id']}"

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two"

    assert (await client.put(f"{process}/stdin", content=pieces())).status_code == 204
    assert (await client.put(f"{process}/stdin", content=b" three")).status_code == 204
    assert (await client.delete(f"{process}/stdin")).status_code == 204
    (session,) = node.sessions.values()
    assert bytes(session.stdin) == b"one two three"
    shape_of(await client.put(f"{process}/stdin", content=b"x"), 409, "failed_precondition")


@pytest.mark.parametrize(
    "body",
    [
        {"argv": ["x"], "shell": "x"},
        {},
        {"argv": []},
        {"argv": [""]},
        {"argv": ["a\x00b"]},
        {"argv": ["x"] * 4097},
        {"argv": ["x" * 262_145]},
        {"argv": ["x" * 200_000, "y" * 100_000]},
        {"argv": ["x"], "env": {str(n): "" for n in range(257)}},
        {"argv": ["x"], "env": {"A=B": "c"}},
        {"argv": ["x"], "env": {"": "c"}},
        {"argv": ["x"], "env": {"A": "\x00"}},
        {"argv": ["x"], "cwd": "relative"},
        {"argv": ["x"], "user": "no such\nuser"},
        {"argv": ["x"], "pty": {"cols": 0}},
        {"argv": ["x"], "timeout_seconds": -1},
        {"argv": ["x"], "timeout_seconds": "5"},
        {"argv": ["x"], "start": "later"},
        {"argv": "x"},
    ],
)
async def test_a_command_that_cannot_be_is_refused(
    shared: Server, shared_client: httpx.AsyncClient, body: dict[str, object]
) -> None:
    sandbox_id = "sbx06d1q8vg3rq5n7h2c4f9k0e8s0"
    for route in ("commands", "exec"):
        answer = await shared_client.post(f"/v1/sandboxes/{sandbox_id}/{route}", json=body)
        shape_of(answer, 400, "invalid_request")
    run = {"sandbox": {"template": "base"}, "command": body}
    shape_of(await shared_client.post("/v1/run", json=run), 400, "invalid_request")


async def test_what_callers_make_large_is_not_kept_encoded(server: Server, client: httpx.AsyncClient) -> None:
    large = await server.sandbox(client, metadata={f"k{n}": "x" * 1024 for n in range(64)})
    small = await server.sandbox(client)
    for sandbox_id in (large, small):
        assert (await client.get(f"/v1/sandboxes/{sandbox_id}")).json()["id"] == sandbox_id
    kept = {sandbox_id for sandbox_id, _ in sandboxes.encoded._kept}
    assert small in kept
    assert large not in kept


async def test_a_sandbox_without_a_machine_is_not_measured_and_is_not_missing(
    server: Server, client: httpx.AsyncClient
) -> None:
    sandbox_id = await server.sandbox(client)
    assert (await client.get(f"/v1/sandboxes/{sandbox_id}/metrics")).status_code == 200
    operation = (await client.delete(f"/v1/sandboxes/{sandbox_id}")).json()["id"]
    await client.get(f"/v1/operations/{operation}", params={"wait": 10})
    refused = shape_of(await client.get(f"/v1/sandboxes/{sandbox_id}/metrics"), 409, "failed_precondition")
    assert refused["details"]["current_state"] == "deleted"

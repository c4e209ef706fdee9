"""Every failure has one form: each endpoint is called wrongly in each way that it can be."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from socket import IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_KEEPIDLE, create_connection
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from tests.server.calls import CallOf, api_calls, named
from tests.server.harness import Server, listening

from space.app.listener import listen
from space.core.errors import SpaceError, Unavailable
from space.server import protocol
from space.server.answers import Stream
from space.server.api import create_api
from space.server.edge import Edge
from space.server.errors import STATUS

pytestmark = pytest.mark.anyio

CALLS = api_calls()
WITH_BODY = [call for call in CALLS if call.endpoint.binding.has_body]
WITH_IDS = [call for call in CALLS if "{" in call.endpoint.path]


def shape_of(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check the envelope and return what is in it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["error"]
    error: dict[str, Any] = body["error"]
    assert set(error) == {"code", "message", "request_id", "details", "retryable"}
    assert error["code"] == code
    assert error["message"]
    assert error["request_id"] == answer.headers["x-request-id"]
    if status in (429, 503):
        assert int(answer.headers["retry-after"]) >= 1
    return error


def subclasses(kind: type[SpaceError]) -> set[type[SpaceError]]:
    return {kind} | {found for direct in kind.__subclasses__() for found in subclasses(direct)}


def test_every_error_of_the_core_has_a_status() -> None:
    core = {kind for kind in subclasses(SpaceError) if kind.__module__ == "space.core.errors"}
    assert core <= set(STATUS)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS", "PATCH", "TRACE"])
async def test_a_path_that_is_nothing_is_not_found(shared_client: httpx.AsyncClient, method: str) -> None:
    for path in ("/", "/v1", "/v1/", "/v1/nothing", "/v1/sandboxes/", "/nothing/at/all", "//", "/api/v1x"):
        shape_of(await shared_client.request(method, path), 404, "not_found")


async def test_a_head_of_nothing_has_no_body_but_a_status(shared_client: httpx.AsyncClient) -> None:
    answer = await shared_client.head("/v1/nothing")
    assert (answer.status_code, answer.content) == (404, b"")
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("call", named(CALLS))
async def test_another_method_is_refused_and_the_possible_ones_are_named(
    shared_client: httpx.AsyncClient, call: CallOf
) -> None:
    for method in ("OPTIONS", "TRACE"):
        answer = await shared_client.request(method, call.path())
        error = shape_of(answer, 405, "invalid_request")
        assert call.method in answer.headers["allow"].split(", ")
        assert call.method in error["message"]


NO_IDS = (
    "x",
    "sbx06d1q8vg3rq5n7h2c4f9k0e8s1",  # the last character has bits that an id never has
    "SBX06D1Q8VG3RQ5N7H2C4F9K0E8S0",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e",
    "%00",
    "a" * 3000,
    "sbx06d1q8vg3rq5n7h2c4f9k0e8s0%0a",
    "' OR 1=1 --",
)


@pytest.mark.parametrize("call", named(WITH_IDS))
async def test_an_id_of_the_wrong_form_is_not_found(shared_client: httpx.AsyncClient, call: CallOf) -> None:
    name = call.endpoint.path[call.endpoint.path.index("{") + 1 : call.endpoint.path.index("}")]
    for value in NO_IDS:
        answer = await shared_client.request(url=call.path(**{name: value}), **call.arguments)
        if call.method == "HEAD":
            assert answer.status_code == 404
        else:
            shape_of(answer, 404, "not_found")
            assert len(answer.content) < 1000


@pytest.mark.parametrize("call", named([call for call in CALLS if not call.endpoint.document.media_type]))
async def test_an_unknown_query_parameter_is_named(shared_client: httpx.AsyncClient, call: CallOf) -> None:
    arguments = call.arguments
    arguments["params"] = {**arguments["params"], "colour": "red"}
    answer = await shared_client.request(url=call.path(), **arguments)
    if call.method == "HEAD":
        assert answer.status_code == 400
    else:
        assert "colour" in shape_of(answer, 400, "invalid_request")["details"]["field"]


@pytest.mark.parametrize("call", named(WITH_BODY))
async def test_an_unknown_field_is_named(shared_client: httpx.AsyncClient, call: CallOf) -> None:
    answer = await shared_client.request(call.method, call.path(), json={**call.body, "colour": "red"})
    error = shape_of(answer, 400, "invalid_request")
    assert error["details"]["field"] == "colour"
    assert "colour" in error["message"]


NO_OBJECTS = (
    b"",
    b"{",
    b"[]",
    b'"x"',
    b"null",
    b"1",
    b"\xff\xfe",
    b"{" * 100_000,
    b'{"a":NaN}',
    b'{"\\ud800":1}',
    b"[" * 200,
)


@pytest.mark.parametrize("call", named(WITH_BODY))
async def test_a_body_that_is_no_json_object_is_invalid(shared_client: httpx.AsyncClient, call: CallOf) -> None:
    headers = {"Content-Type": "application/json"}
    for raw in NO_OBJECTS:
        if raw or not call.endpoint.binding.body_is_optional:
            answer = await shared_client.request(call.method, call.path(), content=raw, headers=headers)
            assert shape_of(answer, 400, "invalid_request")["details"]["field"]


@pytest.mark.parametrize("call", named(WITH_BODY))
async def test_a_body_of_another_type_is_not_read(shared_client: httpx.AsyncClient, call: CallOf) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = await shared_client.request(call.method, call.path(), content=b"x=1", headers={"Content-Type": kind})
        shape_of(answer, 415, "invalid_request")


@pytest.mark.parametrize("call", named(WITH_BODY))
async def test_each_field_refuses_each_wrong_type(shared_client: httpx.AsyncClient, call: CallOf) -> None:
    for name, value in call.body.items():
        for wrong in ({"x": {"y": 1}}, [[1]], True, 1.5, "\x00", -1):
            if type(wrong) is type(value) and not isinstance(value, dict | list):
                continue
            answer = await shared_client.request(call.method, call.path(), json={**call.body, name: wrong})
            if answer.status_code in (404, 422, 202, 403) and isinstance(value, dict | list | bool):
                continue  # a free-form object
            error = shape_of(answer, 400, "invalid_request")
            assert name in error["details"]["field"] or error["details"]["field"] == "body", (name, wrong, error)


async def chunks(count: int, sent: list[int]) -> AsyncIterator[bytes]:
    """A body that does not say how long it is."""
    for _ in range(count):
        sent.append(1 << 20)
        yield b" " * (1 << 20)


@pytest.mark.parametrize("call", named(WITH_BODY))
async def test_a_body_beyond_the_limit_is_refused(shared_client: httpx.AsyncClient, call: CallOf) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await shared_client.request(call.method, call.path(), content=chunks(6, []), headers=headers)
    assert shape_of(answer, 413, "payload_too_large")["details"]["limit"] == 4 << 20


async def test_a_body_without_end_is_not_read_to_its_end(shared_client: httpx.AsyncClient) -> None:
    sent: list[int] = []
    with contextlib.suppress(httpx.TransportError):  # a client that never stops sending may see only the reset
        await shared_client.post("/v1/run", content=chunks(256, sent), headers={"Content-Type": "application/json"})
    assert sum(sent) < 64 << 20


async def test_a_body_whose_length_is_too_large_is_refused_before_it_comes(shared_client: httpx.AsyncClient) -> None:
    answer = await shared_client.post(
        "/v1/sandboxes", content=b" " * (5 << 20), headers={"Content-Type": "application/json"}
    )
    shape_of(answer, 413, "payload_too_large")


async def test_a_parameter_that_is_given_twice_is_named(shared_client: httpx.AsyncClient) -> None:
    answer = await shared_client.get("/v1/sandboxes?limit=1&limit=2")
    assert shape_of(answer, 400, "invalid_request")["details"]["field"] == "limit"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("state=flying", "state"),
        ("order=up", "order"),
        ("created_after=yesterday", "created_after"),
        ("created_after=2026-12-01T00:00:00", "created_after"),
        ("fields=id,colour", "fields"),
        ("metadata.=x", "metadata."),
        ("metadata=x", "metadata"),
        ("template=%00", "template"),
        ("cursor=%ff", "query"),
    ],
)
async def test_a_bad_list_parameter_is_named(shared_client: httpx.AsyncClient, query: str, field: str) -> None:
    answer = await shared_client.get(f"/v1/sandboxes?{query}")
    assert shape_of(answer, 400, "invalid_request")["details"]["field"] == field


async def test_a_cursor_that_was_not_given_out_is_refused(shared_client: httpx.AsyncClient) -> None:
    shape_of(await shared_client.get("/v1/sandboxes?cursor=bogus"), 400, "invalid_request")


async def test_the_callers_request_id_is_kept_and_a_bad_one_is_replaced(shared_client: httpx.AsyncClient) -> None:
    kept = await shared_client.get("/v1/sandboxes", headers={"X-Request-Id": "my-id.1"})
    assert kept.headers["x-request-id"] == "my-id.1"
    for bad in ("a b", "x" * 129, "a;b", '"'):
        replaced = await shared_client.get("/v1/nothing", headers={"X-Request-Id": bad})
        assert replaced.headers["x-request-id"].startswith("req-")
        shape_of(replaced, 404, "not_found")


async def test_a_crash_tells_the_caller_nothing_but_where_to_look(shared: Server) -> None:
    async def crash() -> Any:
        raise RuntimeError("a secret detail")

    async def fail() -> Any:
        raise SpaceError("a secret failure", secret="detail")

    for failing in (crash, fail):
        services = replace(shared.services, node_facts=failing)
        async with listening(create_api(services)) as (url,), httpx.AsyncClient(base_url=url) as client:
            answer = await client.get("/v1/nodes", headers={"Authorization": f"Bearer {shared.admin}"})
        error = shape_of(answer, 500, "internal")
        assert "secret" not in answer.text
        assert error["details"] == {}


async def test_a_stream_whose_source_fails_is_broken_off_and_is_no_crash_of_ours() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        raise Unavailable("the sandbox does not answer")

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await Stream(pieces(), media_type="text/plain")(scope, receive, send)

    with capture_logs() as logged:
        async with listening(Edge(inner, state={}, server="test")) as (url,), httpx.AsyncClient(base_url=url) as client:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get("/")
    assert [entry["event"] for entry in logged] == ["answer.broken_off", "request.served"]
    assert logged[0]["error"] == "service_unavailable"


async def test_a_server_that_is_not_ready_says_which_part(shared: Server) -> None:
    async def fail() -> None:
        raise Unavailable("the disk is gone")

    services = replace(shared.services, checks={"store": fail})
    async with listening(create_api(services)) as (url,), httpx.AsyncClient(base_url=url) as client:
        error = shape_of(await client.get("/readyz"), 503, "service_unavailable")
        assert (await client.get("/healthz")).json() == {"status": "ok"}
    assert error["details"]["failing"] == ["store"]


async def test_the_published_base_path_is_served_too(shared_client: httpx.AsyncClient) -> None:
    assert (await shared_client.get("/api/v1/sandboxes")).json() == {"items": [], "next_cursor": None}
    shape_of(await shared_client.get("/api/v1/nothing"), 404, "not_found")
    shape_of(await shared_client.get("/api/auth/v1/tokens"), 404, "not_found")


async def raw_answer(server: Server, *pieces: bytes) -> httpx.Response:
    """Send bytes that no HTTP library would, and parse what comes back."""
    host, port = server.api_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    return httpx.Response(int(lines[0].split()[1]), headers=headers, content=body)


async def test_what_is_no_http_is_refused_in_the_same_form(shared: Server) -> None:
    for nonsense in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nIdempotency-Key: \x7f\r\n\r\n", b"\x16\x03\x01\x02\x00"):
        shape_of(await raw_answer(shared, nonsense), 400, "invalid_request")


async def test_headers_without_end_are_refused(shared: Server) -> None:
    one_header = [b"GET / HTTP/1.1\r\nX: ", *[b"x" * 10_000] * 8]
    many_headers = [b"GET / HTTP/1.1\r\n", *[b"X: " + b"x" * 10_000 + b"\r\n"] * 8]
    path = [b"GET /", *[b"x" * 10_000] * 8]
    for pieces in (one_header, many_headers, path):
        answer = await raw_answer(shared, *pieces)
        assert shape_of(answer, 400, "invalid_request")["details"]["limit"] == 65_536


@pytest.mark.parametrize(
    "sent", [b"", b"\r\n", b"GET /healthz HTTP/1.1\r\nHost:", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n\r\n"]
)
async def test_a_connection_that_sends_no_request_is_closed(
    shared: Server, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    address = httpx.URL(shared.api_url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(sent)
    if sent.endswith(b"\r\n\r\n\r\n"):
        assert b"ok" in await reader.readuntil(b"}")
        await asyncio.sleep(0.05)
        writer.write(b"\r\n")  # a line break before the next request, which never comes
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()


async def test_a_caller_whose_machine_vanishes_is_noticed() -> None:
    with listen("127.0.0.1:0", setting="SPACE_LISTEN") as sock, create_connection(sock.getsockname()):
        accepted, _ = await asyncio.get_running_loop().sock_accept(sock)
        with accepted:
            assert accepted.getsockopt(SOL_SOCKET, SO_KEEPALIVE) == 1
            assert accepted.getsockopt(IPPROTO_TCP, TCP_KEEPIDLE) == 30


async def test_a_kept_alive_connection_serves_large_requests_one_after_the_other(
    shared_client: httpx.AsyncClient,
) -> None:
    body = {"template": "nosuch", "metadata": {f"k{number}": "v" * 1024 for number in range(64)}}
    for _ in range(5):
        shape_of(await shared_client.post("/v1/sandboxes", json=body), 404, "not_found")

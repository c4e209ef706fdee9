"""Command streams: framing, resuming, several readers, who may read, and what slow readers cost."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.harness import TLS, Server, SseEvent, serving, sse_events
from tests.server.test_error_shape import shape_of

from space.core.ids import SandboxId, SessionId
from space.core.journal import RecordKind
from space.server.dataplane import follow
from space.testing.node import FakeNode

pytestmark = [pytest.mark.anyio, pytest.mark.live]


class Command:
    """A command of the fake node, and readers of it."""

    def __init__(self, sandbox_id: str, created: dict[str, Any]) -> None:
        self.sandbox_id = SandboxId(sandbox_id)
        self.url = str(created["session"]["events_url"])
        self.token = str(created["session"]["token"])
        self.session_id = SessionId(created["session"]["id"])
        self.process_id = str(created["process"]["id"])

    @contextlib.asynccontextmanager
    async def reader(self, *, token: str | None = None, **request: Any) -> AsyncIterator[httpx.Response]:
        headers = {"Authorization": f"Bearer {token or self.token}", **request.pop("headers", {})}
        async with (
            httpx.AsyncClient(verify=TLS, timeout=20) as client,
            client.stream("GET", self.url, headers=headers, **request) as answer,
        ):
            yield answer

    async def read(self, **request: Any) -> list[SseEvent]:
        """Read to the end."""
        async with self.reader(**request) as answer:
            assert answer.status_code == 200, await answer.aread()
            return [event async for event in sse_events(answer)]


async def create(server: Server, client: httpx.AsyncClient, **body: Any) -> Command:
    sandbox_id = await server.sandbox(client)
    made = await client.post(f"/v1/sandboxes/{sandbox_id}/commands", json={"argv": ["x"], **body})
    assert made.status_code == 201, made.text
    return Command(sandbox_id, made.json())


@pytest.fixture
async def started(server: Server, client: httpx.AsyncClient) -> Command:
    return await create(server, client, start="now")


def output(events: list[SseEvent], stream: str = "stdout") -> bytes:
    return b"".join(base64.b64decode(event.data["data"]) for event in events if event.event == stream)


async def test_frames_are_as_published(node: FakeNode, started: Command) -> None:
    node.write_output(started.session_id, b"one\n")
    node.write_output(started.session_id, b"\xff\x00two", kind=RecordKind.STDERR)
    node.write_output(started.session_id, b"three")
    node.exit_process(started.session_id, 3)
    async with started.reader() as answer:
        raw = (await answer.aread()).decode()
    blocks = [block.split("\n") for block in raw.strip().split("\n\n")]
    assert [block[1] for block in blocks] == [
        "event: process_started",
        "event: stdout",
        "event: stderr",
        "event: stdout",
        "event: process_exited",
    ]
    assert blocks[1][2] == 'data: {"data":"b25lCg==","offset":0}'
    assert blocks[2][2] == 'data: {"data":"/wB0d28=","offset":0}'
    assert blocks[3][2] == 'data: {"data":"dGhyZWU=","offset":4}'
    positions = [int(block[0].removeprefix("id: ")) for block in blocks]
    assert positions == [record.position for record in node.sessions[started.session_id].records]


async def test_a_stream_has_the_headers_that_keep_proxies_from_holding_it_back(
    node: FakeNode, started: Command
) -> None:
    node.exit_process(started.session_id)
    async with started.reader() as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-request-id"]


@pytest.mark.parametrize("how", ["header", "query", "header-wins"])
async def test_a_reader_that_comes_back_gets_the_rest_once_and_in_order(
    node: FakeNode, started: Command, how: str
) -> None:
    for number in range(50):
        node.write_output(started.session_id, f"{number}\n".encode())
    seen: list[SseEvent] = []
    async with started.reader() as answer:
        async for event in sse_events(answer):
            seen.append(event)
            if len(seen) == 20:
                break
    for number in range(50, 100):
        node.write_output(started.session_id, f"{number}\n".encode())
    node.exit_process(started.session_id)
    last = seen[-1].id or ""
    ways: dict[str, dict[str, Any]] = {
        "header": {"headers": {"Last-Event-ID": last}},
        "query": {"params": {"from": last}},
        "header-wins": {"headers": {"Last-Event-ID": last}, "params": {"from": "0"}},
    }
    rest = await started.read(**ways[how])
    assert output(seen + rest) == "".join(f"{number}\n" for number in range(100)).encode()
    assert rest[-1].event == "process_exited"


async def test_output_comes_live(node: FakeNode, started: Command) -> None:
    async with started.reader() as answer:
        events = sse_events(answer)
        assert (await anext(events)).event == "process_started"
        for number in range(5):
            node.write_output(started.session_id, bytes([number]))
            event = await asyncio.wait_for(anext(events), 5)
            assert base64.b64decode(event.data["data"]) == bytes([number])


async def test_several_readers_get_all_of_it(node: FakeNode, started: Command) -> None:
    reading = [asyncio.create_task(started.read()) for _ in range(5)]
    for number in range(200):
        node.write_output(started.session_id, f"{number} ".encode())
        if number % 20 == 0:
            await asyncio.sleep(0.01)
    node.exit_process(started.session_id)
    expected = "".join(f"{number} " for number in range(200)).encode()
    assert [output(events) for events in await asyncio.gather(*reading)] == [expected] * 5


async def test_the_first_reader_starts_a_created_command_and_the_second_does_not_again(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    command = await create(server, client)
    assert node.sessions == {}
    async with command.reader() as first, command.reader() as second:
        assert (await anext(sse_events(first))).event == "process_started"
        assert (await anext(sse_events(second))).event == "process_started"
    assert len(node.sessions) == 1


async def test_a_machine_that_dies_ends_the_stream_and_never_as_an_exit(node: FakeNode, started: Command) -> None:
    node.write_output(started.session_id, b"half")
    async with started.reader() as answer:
        events = sse_events(answer)
        await anext(events)
        node.crash(started.sandbox_id, reason="oom")
        rest = [event async for event in events]
    assert [event.event for event in rest] == ["stdout", "sandbox_lost"]
    assert rest[-1].data == {"reason": "oom"}


async def test_one_stream_as_text_for_plain_readers(node: FakeNode, started: Command) -> None:
    smile = "😀".encode()
    node.write_output(started.session_id, b"a" + smile[:2])
    node.write_output(started.session_id, b"not shown", kind=RecordKind.STDERR)
    node.write_output(started.session_id, smile[2:] + b"\xff\n")
    node.write_output(started.session_id, smile[:3])
    node.exit_process(started.session_id)
    events = await started.read(params={"stream": "stdout", "encoding": "utf-8"})
    shown = "".join(event.data["data"] for event in events if event.event == "stdout")
    assert shown == "a😀\ufffd\n\ufffd"
    assert {event.event for event in events} == {"process_started", "stdout", "process_exited"}


async def test_raw_bytes_for_pipes(node: FakeNode, started: Command) -> None:
    node.write_output(started.session_id, b"\x00\xffone")
    node.write_output(started.session_id, b"other", kind=RecordKind.STDERR)
    node.write_output(started.session_id, b"two")
    node.exit_process(started.session_id)
    async with started.reader(params={"stream": "stdout", "encoding": "raw"}) as answer:
        assert answer.headers["content-type"] == "application/octet-stream"
        assert await answer.aread() == b"\x00\xffonetwo"


async def test_a_quiet_stream_is_kept_open_by_comments(
    monkeypatch: pytest.MonkeyPatch, node: FakeNode, started: Command
) -> None:
    monkeypatch.setattr(follow, "KEEP_ALIVE_SECONDS", 0.05)
    lines: list[str] = []
    async with started.reader() as answer:
        async for line in answer.aiter_lines():
            lines.append(line)
            if lines.count(": keep-alive") == 2:
                break
    assert "event: process_started" in lines


async def test_an_expired_token_opens_nothing_but_ends_nothing(tmp_path: Path, node: FakeNode) -> None:
    async with serving(tmp_path, node, session_token_seconds=1) as short, short.client() as caller:
        command = await create(short, caller, start="now")
        async with command.reader() as answer:
            events = sse_events(answer)
            await anext(events)
            await asyncio.sleep(1.1)
            async with command.reader() as late:
                await late.aread()
                shape_of(late, 401, "unauthorized")
            node.write_output(command.session_id, b"still")
            assert (await anext(events)).event == "stdout"
        renewed = await caller.post(f"/v1/sandboxes/{command.sandbox_id}/sessions/{command.session_id}/token")
        assert renewed.status_code == 201
        async with command.reader(token=renewed.json()["token"]) as again:
            assert again.status_code == 200


async def test_revoking_the_callers_token_cuts_open_streams(
    server: Server, client: httpx.AsyncClient, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "REVOCATION_SECONDS", 0.05)
    made = await client.post(
        "/auth/v1/tokens", json={"name": "x", "scopes": ["sandboxes:read", "sandboxes:write", "commands:run"]}
    )
    async with server.client(made.json()["token"]) as holder:
        command = await create(server, holder, start="now")
    async with command.reader() as answer:
        events = sse_events(answer)
        await anext(events)
        await client.delete(f"/auth/v1/tokens/{made.json()['id']}")
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(events), 5)
    async with command.reader() as late:
        await late.aread()
        shape_of(late, 401, "unauthorized")


async def test_a_token_is_for_its_session_only(server: Server, client: httpx.AsyncClient) -> None:
    one = await create(server, client, start="now")
    other = await create(server, client, start="now")
    async with one.reader(token=other.token) as answer:
        await answer.aread()
        shape_of(answer, 403, "forbidden")
    for token in (server.admin, "nonsense"):
        async with one.reader(token=token) as answer:
            await answer.aread()
            shape_of(answer, 401, "unauthorized")
    async with server.client(one.token) as holder:
        shape_of(await holder.get("/v1/sandboxes"), 401, "unauthorized")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"params": {"from": "x"}}, "from"),
        ({"params": {"from": "-1"}}, "from"),
        ({"params": {"from": str(10**30)}}, "from"),
        ({"headers": {"Last-Event-ID": "abc"}}, "Last-Event-ID"),
        ({"headers": {"Last-Event-ID": "9" * 30}}, "Last-Event-ID"),
        ({"params": {"stream": "stdlog"}}, "stream"),
        ({"params": {"encoding": "ebcdic"}}, "encoding"),
        ({"params": {"colour": "red"}}, "colour"),
    ],
)
async def test_a_bad_parameter_is_named(started: Command, request_: dict[str, Any], field: str) -> None:
    async with started.reader(**request_) as answer:
        await answer.aread()
        assert shape_of(answer, 400, "invalid_request")["details"]["field"] == field


async def test_a_position_inside_a_record_is_refused(whole: Server, whole_client: httpx.AsyncClient) -> None:
    command = await create(whole, whole_client, argv=["/bin/echo", "hello"], start="now")
    events = await command.read()
    inside = int(events[0].id or "") + 1
    async with command.reader(params={"from": inside}) as answer:
        await answer.aread()
        assert shape_of(answer, 400, "invalid_request")["details"]["field"] == "from"


async def test_what_is_not_a_stream_is_not_found(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.data_plane_url, verify=TLS) as client:
        shape_of(await client.get("/"), 404, "not_found")
        shape_of(await client.get("/v1/sessions/x/events"), 404, "not_found")
        shape_of(await client.post("/v1/sessions/ses06d1q8vg3rq5n7h2c4f9k0e8s8/events"), 405, "invalid_request")
        shape_of(await client.get("/v1/sessions/ses06d1q8vg3rq5n7h2c4f9k0e8s8/events"), 401, "unauthorized")


async def test_a_reader_that_takes_nothing_costs_a_bounded_buffer(node: FakeNode, started: Command) -> None:
    """The follower stops pulling once its buffer and the socket's are full."""
    piece = b"x" * 65_536
    for _ in range(400):  # 25 MiB
        node.write_output(started.session_id, piece)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(started.url.split(":")[2].split("/")[0]))
    path = "/" + started.url.split("/", 3)[3]
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {started.token}\r\n\r\n".encode())
    await asyncio.sleep(0.3)
    followers = [task for task in asyncio.all_tasks() if "Follower._pull" in repr(task)]
    assert len(followers) == 1
    frame = followers[0].get_coro().cr_frame  # type: ignore[union-attr]
    assert frame is not None
    follower = frame.f_locals["self"]
    assert follower._size <= follow.BUFFER_BYTES + 100_000
    taken = await reader.read(1000)
    assert taken.startswith(b"HTTP/1.1 200")
    writer.close()
    await asyncio.sleep(0.1)
    assert not [task for task in asyncio.all_tasks() if "Follower." in repr(task)]

import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse, Response
from tests.sdk.scripted_server import SANDBOX, TOKEN, Cut, Script, ScriptedServer, error, serving

from space.sdk import (
    AsyncClient,
    AsyncSandbox,
    CapacityUnavailableError,
    Client,
    ConflictError,
    InternalError,
    NotFoundError,
    ProtocolError,
    RateLimitedError,
    RetryPolicy,
    Sandbox,
    SpaceError,
    UnauthorizedError,
    UnreachableError,
)
from space.sdk.errors import BY_CODE

pytestmark = pytest.mark.live

FAST = RetryPolicy(first_delay=0.01)


def connected(server: ScriptedServer, **options: Any) -> Client:
    return Client(server.url, TOKEN, retry=FAST, **options)


def busy(after: str | None = "0") -> Response:
    headers = {} if after is None else {"Retry-After": after}
    return error("capacity_unavailable", 503, retryable=True, headers=headers)


def test_create_waits_for_the_operation_and_returns_a_running_sandbox() -> None:
    script = Script(operation_polls=3)
    with serving(script) as server, connected(server) as client:
        sandbox = Sandbox.create(metadata={"a": "b"}, env={"K": "V"}, memory_mib=256, client=client)
    assert sandbox.info.state == "running"
    assert sandbox.info.created_at == datetime(2026, 1, 1, 0, 0, 0, 500000, UTC)
    method, path, headers, body = script.requests[0]
    assert (method, path) == ("POST", "/v1/sandboxes")
    assert headers["prefer"].startswith("wait=")
    assert json.loads(body) == {
        "template": "base", "resources": {"memory_mib": 256}, "env": {"K": "V"}, "metadata": {"a": "b"},
    }  # fmt: skip


def test_a_failed_create_raises_what_the_operation_says() -> None:
    script = Script(operation_polls=1, operation_error={"code": "capacity_unavailable", "message": "no node has room"})
    with serving(script) as server, connected(server) as client:
        with pytest.raises(CapacityUnavailableError, match="no node has room") as caught:
            Sandbox.create(client=client)
        assert caught.value.details["operation_id"].startswith("ops")


@pytest.mark.parametrize("failures", [[Cut], [Cut, busy(), Cut], [busy(None)], [busy()] * 4])
def test_a_create_that_is_retried_carries_one_key(failures: list[Any]) -> None:
    script = Script(failures=list(failures))
    with serving(script) as server, connected(server) as client:
        Sandbox.create(client=client)
    keys = {headers["idempotency-key"] for method, _, headers, _ in script.requests if method == "POST"}
    assert len(script.requests) == len(failures) + 1
    assert len(keys) == 1


def test_five_attempts_are_all() -> None:
    script = Script(failures=[busy()] * 9)
    with serving(script) as server, connected(server) as client, pytest.raises(CapacityUnavailableError):
        client.get_sandbox(SANDBOX)
    assert len(script.requests) == 5


def test_what_is_not_retryable_is_asked_once() -> None:
    script = Script(failures=[error("conflict", 409)])
    with serving(script) as server, connected(server) as client, pytest.raises(ConflictError) as caught:
        client.get_sandbox(SANDBOX)
    assert len(script.requests) == 1
    assert (caught.value.request_id, caught.value.details, caught.value.status) == ("req1", {"field": "x"}, 409)


def test_a_server_that_asks_to_wait_too_long_is_not_waited_for() -> None:
    script = Script(failures=[error("rate_limited", 429, retryable=True, headers={"Retry-After": "3600"})])
    with serving(script) as server, connected(server) as client, pytest.raises(RateLimitedError) as caught:
        client.get_sandbox(SANDBOX)
    assert caught.value.retry_after == 3600


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_each_code_has_its_class(code: str) -> None:
    script = Script(failures=[error(code, 400)])
    with serving(script) as server, connected(server) as client, pytest.raises(BY_CODE[code]) as caught:
        client.get_sandbox(SANDBOX)
    assert type(caught.value).code == code


def test_a_code_of_the_future_is_an_internal_error_and_keeps_its_message() -> None:
    script = Script(failures=[error("quota_of_tomorrow", 418)])
    with (
        serving(script) as server,
        connected(server) as client,
        pytest.raises(InternalError, match="quota_of_tomorrow"),
    ):
        client.get_sandbox(SANDBOX)


def test_an_answer_of_another_server_is_named_as_such() -> None:
    script = Script(failures=[PlainTextResponse("<html>no", 404), PlainTextResponse("hello", 200)])
    with serving(script) as server, connected(server) as client:
        for _ in range(2):
            with pytest.raises(ProtocolError):
                client.get_sandbox(SANDBOX)


def test_a_wrong_token_is_unauthorized() -> None:
    with serving(Script()) as server, Client(server.url, "wrong") as client, pytest.raises(UnauthorizedError):
        client.get_sandbox(SANDBOX)


def test_no_server_is_said_to_be_unreachable_and_secrets_stay_out_of_it() -> None:
    with Client("http://user:hunter2@127.0.0.1:1", "s3cret", retry=FAST) as client:
        with pytest.raises(UnreachableError) as caught:
            client.get_sandbox(SANDBOX)
        assert "hunter2" not in str(caught.value)
        assert "s3cret" not in repr(client) + repr(client.transport.settings)


def test_lists_are_followed_page_by_page() -> None:
    with serving(Script()) as server, connected(server) as client:
        assert [info.metadata["n"] for info in Sandbox.list(client=client)] == list("01234")


@pytest.mark.anyio
async def test_the_asynchronous_side_creates_lists_and_deletes() -> None:
    script = Script(operation_polls=1)
    with serving(script) as server:
        async with AsyncClient(server.url, TOKEN, retry=FAST) as client:
            async with await AsyncSandbox.create(client=client) as sandbox:
                result = await sandbox.exec(["x"])
            assert [info.metadata["n"] async for info in AsyncSandbox.list(client=client)] == list("01234")
    assert (result.exit_code, result.stdout_bytes, result.stdout) == (3, b"\xffout", "�out")
    assert result.stderr_truncated
    assert ("DELETE", f"/v1/sandboxes/{sandbox.id}") in [request[:2] for request in script.requests]


def test_the_context_manager_deletes_even_after_an_error() -> None:
    script = Script()

    class Oops(Exception):
        pass

    with serving(script) as server, connected(server) as client, pytest.raises(Oops), Sandbox.create(client=client):
        raise Oops
    assert script.requests[-1][0] == "DELETE"


def test_deleting_what_is_gone_is_fine() -> None:
    script = Script()
    with serving(script) as server, connected(server) as client:
        sandbox = Sandbox.create(client=client)
        script.failures = [error("not_found", 404)]
        sandbox.kill()


@pytest.mark.parametrize("size", [0, 1, 4095, 18433, 131073, (1 << 20) + 1])
def test_files_arrive_whole_from_bytes_files_and_iterators(size: int, tmp_path: Path) -> None:
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    (tmp_path / "local").write_bytes(data)
    with serving(Script()) as server, connected(server) as client:
        files = Sandbox.create(client=client).files
        with (tmp_path / "local").open("rb") as file:
            for source in (data, io.BytesIO(data), file, tmp_path / "local", iter([data[:7], data[7:]])):
                info = files.write("/tmp/x", source)
                assert info is not None
                assert info.size == size
                assert files.read("/tmp/x") == data
        assert files.download("/tmp/x", tmp_path / "back") == size
    assert (tmp_path / "back").read_bytes() == data


def test_a_file_is_uploaded_from_where_it_stands_also_the_second_time() -> None:
    script = Script()
    with serving(script) as server, connected(server) as client:
        files = Sandbox.create(client=client).files
        source = io.BytesIO(b"headerbody")
        source.seek(6)
        script.failures = [busy(), Cut]
        files.write("/tmp/x", source)
    assert script.files == {"/tmp/x": b"body"}


def test_an_iterator_is_not_sent_twice() -> None:
    script = Script()
    with serving(script) as server, connected(server) as client:
        files = Sandbox.create(client=client).files
        script.failures = [busy()]
        with pytest.raises(CapacityUnavailableError):
            files.write("/tmp/x", iter([b"a", b"b"]))
    assert script.files == {}


def test_a_missing_file_is_not_found() -> None:
    with serving(Script()) as server, connected(server) as client:
        files = Sandbox.create(client=client).files
        with pytest.raises(NotFoundError):
            files.read("/nope")


def test_stdin_is_not_written_twice_when_the_answer_is_lost() -> None:
    script = Script()
    with serving(script) as server, connected(server) as client:
        command = Sandbox.create(client=client).start(["cat"], stdin=True)
        script.failures = [Cut]
        with pytest.raises(UnreachableError):
            command.write(b"once")
        writes = [request for request in script.requests if request[1].endswith("/stdin")]
    assert len(writes) == 1


def test_ids_from_outside_stay_one_segment_of_the_path() -> None:
    script = Script()
    with serving(script) as server, connected(server) as client, pytest.raises(SpaceError):
        client.get_sandbox("../operations/x?y")
    assert all(not path.startswith("/v1/operations") for _, path, _, _ in script.requests)


def test_lists_of_a_sandbox_are_whole() -> None:
    with serving(Script()) as server, connected(server) as client:
        sandbox = Sandbox.connect(SANDBOX, client=client)
        assert len(sandbox.processes()) == 5
        assert [event.seq for event in sandbox.timeline()] == [0, 1, 2, 3, 4]
        assert [event.seq for event in sandbox.timeline(limit=3)] == [0, 1, 2]


def test_threads_that_begin_together_share_one_pool_of_connections() -> None:
    with serving(Script()) as server, connected(server) as client:
        gate = threading.Barrier(8)

        def ask() -> httpx.Client:
            gate.wait()
            return client.transport._client(server.url)

        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: ask(), range(8)))
        assert len({id(one) for one in found}) == 1

"""The lifecycle through the SDK: what is asked for, what is waited for, and what is told of a failure."""

import json
from typing import Any

import pytest
from tests.sdk.scripted_server import SANDBOX, SNAPSHOT, TOKEN, Cut, Script, ScriptedServer, error, sandbox, serving

from space.sdk import (
    AsyncClient,
    AsyncSandbox,
    Client,
    ConflictError,
    DeadlineExceededError,
    FailedPreconditionError,
    Operation,
    RateLimitedError,
    RetryPolicy,
    Sandbox,
    ServiceUnavailableError,
)

pytestmark = pytest.mark.live

FAST = RetryPolicy(first_delay=0.01)
FULL = {"code": "rate_limited", "message": "the project may hold 5", "details": {"quota": "max_sandboxes"}}


def connected(server: ScriptedServer) -> Client:
    return Client(server.url, TOKEN, retry=FAST)


@pytest.mark.parametrize(
    ("kind", "state"), [("pause", "paused"), ("suspend", "suspended"), ("wake", "running"), ("recover", "running")]
)
@pytest.mark.parametrize("polls", [0, 2])
def test_a_change_is_waited_for_and_the_new_state_is_known(kind: str, state: str, polls: int) -> None:
    script = Script()
    with serving(script) as server, connected(server) as client:
        box = Sandbox.connect(SANDBOX, client=client)
        script.operation_polls = polls
        assert getattr(box, kind)().state == state
        assert box.info.state == state
    (asked,) = [request for request in script.requests if request[1].endswith(f"/{kind}")]
    assert asked[2]["prefer"] == "wait=20"


def test_a_change_that_is_not_waited_for_is_only_recorded() -> None:
    script = Script(state="running")
    with serving(script) as server, connected(server) as client:
        box = Sandbox.connect(SANDBOX, client=client)
        script.operation_polls = 9
        assert box.suspend(wait=False).state == "running"
    assert all("prefer" not in headers for _, path, headers, _ in script.requests if path.endswith("/suspend"))


def test_a_failed_change_says_why_and_whether_trying_again_may_help() -> None:
    script = Script(state="suspended")
    with serving(script) as server, connected(server) as client:
        box = Sandbox.connect(SANDBOX, client=client)
        script.operation_polls = 1
        script.operation_error = {"code": "service_unavailable", "message": "no store", "retryable": True}
        with pytest.raises(ServiceUnavailableError, match="no store") as caught:
            box.wake()
        assert caught.value.retryable
        script.operation_error = None
        assert box.wake().state == "running"


def test_a_change_under_way_is_waited_out_and_asked_for_with_one_key() -> None:
    script = Script()
    with serving(script) as server, connected(server) as client:
        box = Sandbox.connect(SANDBOX, client=client)
        script.failures = [error("conflict", 409, retryable=True), Cut]
        box.pause()
    keys = {headers["idempotency-key"] for _, path, headers, _ in script.requests if path.endswith("/pause")}
    assert len(keys) == 1


def test_a_conflict_that_is_none_of_time_is_raised() -> None:
    script = Script()
    with serving(script) as server, connected(server) as client:
        box = Sandbox.connect(SANDBOX, client=client)
        script.failures = [error("conflict", 409)]
        with pytest.raises(ConflictError):
            box.pause()


def test_who_watches_sees_the_step_and_the_bytes() -> None:
    script = Script()
    seen: list[Operation] = []
    with serving(script) as server, connected(server) as client:
        box = Sandbox.connect(SANDBOX, client=client)
        script.operation_polls = 3
        box.suspend(watch=seen.append)
    assert [operation.step for operation in seen][:-1] == ["upload_snapshot"] * (len(seen) - 1)
    assert seen[0].progress["bytes_read"] == 3 << 20
    assert seen[-1].is_final


def test_a_fork_gives_a_sandbox_or_an_error_for_each_child() -> None:
    script = Script()
    with serving(script) as server, connected(server) as client:
        box = Sandbox.connect(SANDBOX, client=client)
        succeeded = {"id": "ops" + "1" * 26, "kind": "create", "status": "succeeded"}
        script.children = [
            {"sandbox": sandbox("running", 1), "operation": succeeded},
            {"sandbox": sandbox("creating", 2), "operation": succeeded},
            {"error": FULL | {"retryable": True}},
        ]
        first, second, third = box.fork(3, metadata={"task": "7"}, auto_lifecycle={"on_idle": "delete"})
    assert isinstance(first, Sandbox)
    assert isinstance(second, Sandbox)
    assert second.info.state == "running", "it was looked at again once it had been waited for"
    assert isinstance(third, RateLimitedError)
    assert third.retryable
    assert third.details == {"quota": "max_sandboxes"}
    (body,) = [body for _, path, _, body in script.requests if path.endswith("/fork")]
    assert json.loads(body) == {"count": 3, "metadata": {"task": "7"}, "auto_lifecycle": {"on_idle": "delete"}}


def test_a_child_that_does_not_come_up_is_an_error_that_names_it() -> None:
    script = Script()
    failed = {
        "id": "ops" + "1" * 26,
        "kind": "create",
        "status": "failed",
        "error": {"code": "conflict", "message": "x"},
    }
    with serving(script) as server, connected(server) as client:
        box = Sandbox.connect(SANDBOX, client=client)
        script.children = [{"sandbox": sandbox("failed", 1), "operation": failed}]
        (child,) = box.fork()
    assert isinstance(child, ConflictError)
    assert child.details["sandbox_id"] == SANDBOX[:-1] + "1"


@pytest.mark.parametrize("polls", [0, 2])
def test_a_snapshot_is_ready_when_it_is_returned(polls: int) -> None:
    script = Script()
    with serving(script) as server, connected(server) as client:
        box = Sandbox.connect(SANDBOX, client=client)
        script.operation_polls = polls
        taken = box.snapshot("trained")
    assert (taken.id, taken.state, taken.name, taken.bytes_uploaded) == (SNAPSHOT, "ready", "trained", 1 << 20)


def test_a_sandbox_is_made_from_a_snapshot_by_its_id() -> None:
    script = Script()
    with serving(script) as server, connected(server) as client:
        Sandbox.create(SNAPSHOT, client=client)
    assert json.loads(script.requests[0][3]) == {"template": SNAPSHOT}


def test_snapshots_are_listed_page_by_page_and_deleted() -> None:
    script = Script()
    with serving(script) as server, connected(server) as client:
        found = [snapshot.id for snapshot in client.snapshots.list(sandbox=SANDBOX)]
        assert found == [SNAPSHOT[:-1] + str(number) for number in range(5)]
        assert client.snapshots.get(SNAPSHOT).purpose == "named"
        client.snapshots.delete(SNAPSHOT)
    assert script.requests[-1][:2] == ("DELETE", f"/v1/snapshots/{SNAPSHOT}")


def test_extending_tells_when_it_ends_now() -> None:
    with serving(Script()) as server, connected(server) as client:
        box = Sandbox.connect(SANDBOX, client=client)
        expires = box.extend(7200).expires_at
    assert expires is not None
    assert expires.hour == 2


def test_waiting_for_a_state_sees_who_ever_brings_it_about() -> None:
    script = Script()
    with serving(script) as server, connected(server) as client:
        box = Sandbox.connect(SANDBOX, client=client)
        states = iter(["running", "running", "suspended"])

        def next_state(request: Any) -> None:
            script.state = next(states)

        client.transport._client(server.url).event_hooks = {"request": [next_state]}
        assert box.wait_until("suspended", timeout=10).state == "suspended"


def test_waiting_for_what_cannot_come_is_given_up_at_once() -> None:
    with serving(Script(state="deleted")) as server, connected(server) as client:
        box = Sandbox.connect(SANDBOX, client=client)
        with pytest.raises(FailedPreconditionError, match="is deleted"):
            box.wait_until("running")


def test_waiting_ends_in_time() -> None:
    with serving(Script()) as server, connected(server) as client:
        box = Sandbox.connect(SANDBOX, client=client)
        with pytest.raises(DeadlineExceededError):
            box.wait_until("paused", timeout=0.1)


@pytest.mark.anyio
async def test_the_asynchronous_side_does_the_same() -> None:
    script = Script()
    with serving(script) as server:
        async with AsyncClient(server.url, TOKEN, retry=FAST) as client:
            box = await AsyncSandbox.connect(SANDBOX, client=client)
            assert (await box.suspend()).state == "suspended"
            assert (await box.wait_until("suspended")).state == "suspended"
            assert (await box.snapshot()).state == "ready"
            script.children = [{"error": FULL}]
            assert isinstance((await box.fork())[0], RateLimitedError)
            assert len([snapshot async for snapshot in client.snapshots.list()]) == 5

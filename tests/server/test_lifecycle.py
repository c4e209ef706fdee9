"""Pause, suspend, wake, recover over HTTP: waiting, joining, conflicts, and what operations and sandboxes tell."""

import asyncio
from typing import Any

import anyio
import httpx
import pytest
from tests.server.harness import Server, sse_events
from tests.server.test_error_shape import shape_of

from space.core.errors import RuntimeFailed
from space.core.ids import SandboxId
from space.testing.node import FakeNode

pytestmark = [pytest.mark.anyio, pytest.mark.live]

WAIT = {"Prefer": "wait=20"}


async def change(client: httpx.AsyncClient, sandbox_id: str, kind: str, **headers: str) -> httpx.Response:
    return await client.post(f"/v1/sandboxes/{sandbox_id}/{kind}", headers=headers)


async def done(client: httpx.AsyncClient, sandbox_id: str, kind: str) -> dict[str, Any]:
    """Make a change, wait for its end, and return its operation."""
    answer = await change(client, sandbox_id, kind, **WAIT)
    assert answer.status_code == 200, answer.text
    operation: dict[str, Any] = answer.json()
    assert operation["status"] == "succeeded"
    return operation


async def shown(client: httpx.AsyncClient, sandbox_id: str) -> dict[str, Any]:
    body: dict[str, Any] = (await client.get(f"/v1/sandboxes/{sandbox_id}")).json()
    return body


async def reached(client: httpx.AsyncClient, sandbox_id: str, state: str) -> dict[str, Any]:
    """Wait for a state that comes about by itself."""
    with anyio.fail_after(20):
        while (body := await shown(client, sandbox_id))["state"] != state:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return body


async def test_each_change_leads_to_its_state_and_says_so_when_waited_for(
    server: Server, client: httpx.AsyncClient
) -> None:
    sandbox_id = await server.sandbox(client)
    for kind, state in (("pause", "paused"), ("wake", "running"), ("suspend", "suspended"), ("wake", "running")):
        answer = await change(client, sandbox_id, kind, **WAIT)
        assert (answer.status_code, answer.json()["kind"]) == (200, kind), answer.text
        assert answer.headers["preference-applied"] == "wait=20"
        assert answer.headers["location"] == f"/v1/operations/{answer.json()['id']}"
        assert (await shown(client, sandbox_id))["state"] == state


async def test_a_suspend_counts_its_steps_and_bytes_and_names_its_snapshot(
    server: Server, client: httpx.AsyncClient
) -> None:
    sandbox_id = await server.sandbox(client)
    operation = await done(client, sandbox_id, "suspend")
    assert operation["step"] is None
    progress = operation["progress"]
    assert progress["steps_done"] == progress["step_count"] >= 2
    assert progress["bytes_read"] > 0
    assert progress["bytes_uploaded"] >= 0
    sandbox = await shown(client, sandbox_id)
    assert (sandbox["state"], sandbox["restorable"]) == ("suspended", True)
    assert sandbox["snapshot_id"] == operation["snapshot_id"]
    snapshot = (await client.get(f"/v1/snapshots/{operation['snapshot_id']}")).json()
    assert (snapshot["state"], snapshot["purpose"], snapshot["sandbox_id"]) == ("ready", "suspend", sandbox_id)


async def test_asking_for_what_is_so_succeeds_at_once(server: Server, client: httpx.AsyncClient) -> None:
    sandbox_id = await server.sandbox(client)
    answer = await change(client, sandbox_id, "wake")
    assert (answer.status_code, answer.json()["status"]) == (202, "succeeded")
    await done(client, sandbox_id, "suspend")
    assert (await change(client, sandbox_id, "suspend")).json()["status"] == "succeeded"


async def test_while_it_is_under_way_the_same_joins_and_another_conflicts_by_name(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client)
    gate = node.hold("checkpoint")
    first = await change(client, sandbox_id, "suspend")
    assert first.status_code == 202
    await gate.entered.wait()
    running = (await client.get(first.headers["location"])).json()
    assert running["status"] == "running"
    assert running["step"] is not None
    assert running["progress"]["steps_done"] < running["progress"]["step_count"]
    assert (await shown(client, sandbox_id))["state"] == "suspending"
    assert (await change(client, sandbox_id, "suspend")).json()["id"] == first.json()["id"]
    error = shape_of(await change(client, sandbox_id, "pause"), 409, "conflict")
    assert error["retryable"]
    assert error["details"]["operation_id"] == first.json()["id"]
    gate.open()
    ended = (await client.get(first.headers["location"], params={"wait": 20})).json()
    assert ended["status"] == "succeeded"


async def test_waiting_ends_in_202_when_it_takes_longer(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client)
    gate = node.hold("checkpoint")
    answer = await change(client, sandbox_id, "suspend", Prefer="wait=0.1")
    assert (answer.status_code, answer.json()["status"]) == (202, "running")
    gate.open()
    await reached(client, sandbox_id, "suspended")


async def test_a_delete_wins_and_may_be_waited_for(server: Server, client: httpx.AsyncClient, node: FakeNode) -> None:
    sandbox_id = await server.sandbox(client)
    gate = node.hold("checkpoint")
    suspend = await change(client, sandbox_id, "suspend")
    await gate.entered.wait()
    answer = await client.delete(f"/v1/sandboxes/{sandbox_id}", headers=WAIT)
    gate.open()
    assert (answer.status_code, answer.json()["status"]) == (200, "succeeded")
    assert (await client.get(suspend.headers["location"])).json()["status"] == "cancelled"
    assert (await shown(client, sandbox_id))["state"] == "deleted"


async def test_what_the_lifecycle_does_not_allow_is_refused_with_the_state(
    server: Server, client: httpx.AsyncClient
) -> None:
    sandbox_id = await server.sandbox(client)
    await done(client, sandbox_id, "suspend")
    error = shape_of(await change(client, sandbox_id, "pause"), 409, "failed_precondition")
    assert error["details"]["current_state"] == "suspended"
    assert not error["retryable"]


async def test_a_failed_suspend_leaves_the_sandbox_as_it_was_and_tells_where_it_failed(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client)
    node.fail("checkpoint", *[RuntimeFailed("runsc did not save it")] * 9)
    answer = await change(client, sandbox_id, "suspend", **WAIT)
    operation = answer.json()
    if operation["status"] == "running":  # it is tried a few times
        operation = (await client.get(answer.headers["location"], params={"wait": 30})).json()
    assert operation["status"] == "failed"
    assert operation["step"] == "checkpoint_machine"
    assert operation["error"]["code"] == "internal"
    assert (await shown(client, sandbox_id))["state"] == "running"
    node.fail("checkpoint")
    await done(client, sandbox_id, "suspend")


async def test_a_lost_machine_is_restorable_only_after_a_durable_moment(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    never, once = await server.sandbox(client), await server.sandbox(client)
    await done(client, once, "suspend")
    await done(client, once, "wake")
    for sandbox_id, is_restorable in ((never, False), (once, True)):
        node.crash(SandboxId(sandbox_id), reason="oom")
        failed = await reached(client, sandbox_id, "failed")
        assert (failed["reason"], failed["restorable"]) == ("oom", is_restorable)
    shape_of(await change(client, never, "recover"), 409, "failed_precondition")
    await done(client, once, "recover")
    assert (await shown(client, once))["state"] == "running"
    assert (await change(client, once, "recover")).json()["status"] == "succeeded", "twice is harmless"


async def test_the_same_key_is_one_change(server: Server, client: httpx.AsyncClient) -> None:
    sandbox_id = await server.sandbox(client)
    first = await change(client, sandbox_id, "suspend", **{"Idempotency-Key": "k"})
    await reached(client, sandbox_id, "suspended")
    await done(client, sandbox_id, "wake")
    again = await change(client, sandbox_id, "suspend", **{"Idempotency-Key": "k"})
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["idempotency-replayed"] == "true"
    assert (await shown(client, sandbox_id))["state"] == "running"


async def test_the_timeline_tells_every_change_in_order(server: Server, client: httpx.AsyncClient) -> None:
    sandbox_id = await server.sandbox(client)
    operations = [(await done(client, sandbox_id, kind))["id"] for kind in ("pause", "suspend", "wake")]
    events = (await client.get(f"/v1/sandboxes/{sandbox_id}/events")).json()["items"]
    told = [event["operation_id"] for event in events if event["operation_id"] in operations]
    assert list(dict.fromkeys(told)) == operations
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


async def test_a_suspended_sandbox_still_tells_of_its_processes_and_refuses_new_ones(
    server: Server, client: httpx.AsyncClient
) -> None:
    sandbox_id = await server.sandbox(client)
    body = {"argv": ["sleep", "9"], "start": "now"}
    made = (await client.post(f"/v1/sandboxes/{sandbox_id}/commands", json=body)).json()["process"]["id"]
    await done(client, sandbox_id, "suspend")
    (process,) = (await client.get(f"/v1/sandboxes/{sandbox_id}/processes")).json()["items"]
    assert (process["id"], process["state"]) == (made, "running")
    refused = await client.post(f"/v1/sandboxes/{sandbox_id}/exec", json={"argv": ["true"]})
    error = shape_of(refused, 409, "failed_precondition")
    assert error["details"]["current_state"] == "suspended"
    error = shape_of(await client.get(f"/v1/sandboxes/{sandbox_id}/metrics"), 409, "failed_precondition")
    assert error["details"]["current_state"] == "suspended"


async def test_a_reader_of_a_suspended_sandbox_gets_what_there_is_and_waits_for_the_rest(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client)
    body = {"argv": ["counter"], "start": "now"}
    made = (await client.post(f"/v1/sandboxes/{sandbox_id}/commands", json=body)).json()
    (session_id,) = node.sessions
    node.write_output(session_id, b"before")
    await done(client, sandbox_id, "suspend")
    headers = {"Authorization": f"Bearer {made['session']['token']}"}
    async with client.stream("GET", made["session"]["events_url"], headers=headers) as answer:
        assert answer.status_code == 200
        events = sse_events(answer)
        assert [(await anext(events)).event for _ in range(2)] == ["process_started", "stdout"]
        await done(client, sandbox_id, "wake")
        node.write_output(session_id, b"after")
        node.exit_process(session_id)
        with anyio.fail_after(20):
            rest = [event async for event in events]
    assert [event.event for event in rest] == ["stdout", "process_exited"]
    assert rest[0].data["offset"] == len(b"before")


async def test_a_reader_may_come_back_to_a_suspended_sandbox_with_its_last_event_and_a_new_token(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client)
    body = {"argv": ["counter"], "start": "now"}
    made = (await client.post(f"/v1/sandboxes/{sandbox_id}/commands", json=body)).json()
    (session_id,) = node.sessions
    node.write_output(session_id, b"before")
    await done(client, sandbox_id, "suspend")
    renewed = await client.post(f"/v1/sandboxes/{sandbox_id}/sessions/{made['session']['id']}/token")
    assert renewed.status_code == 201
    headers = {"Authorization": f"Bearer {renewed.json()['token']}"}
    async with client.stream("GET", renewed.json()["events_url"], headers=headers) as answer:
        first = await anext(sse_events(answer))
    assert first.id is not None
    headers["Last-Event-ID"] = first.id
    async with client.stream("GET", renewed.json()["events_url"], headers=headers) as answer:
        events = sse_events(answer)
        assert (await anext(events)).event == "stdout"
        await client.delete(f"/v1/sandboxes/{sandbox_id}", headers=WAIT)
        with anyio.fail_after(20):
            assert [event.event async for event in events] == ["sandbox_lost"]


async def test_a_command_wakes_a_sandbox_that_wakes_on_request(
    server: Server, client: httpx.AsyncClient, node: FakeNode
) -> None:
    sandbox_id = await server.sandbox(client, auto_lifecycle={"wake_on_request": True})
    await done(client, sandbox_id, "suspend")
    body = {"argv": ["true"], "start": "now"}
    made = await client.post(f"/v1/sandboxes/{sandbox_id}/commands", json=body)
    assert made.status_code == 201, made.text
    assert (await shown(client, sandbox_id))["state"] == "running"
    assert len(node.sessions) == 1

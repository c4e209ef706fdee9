"""The main path, from nothing to output, with real guest agents."""

import base64

import httpx
import pytest
from tests.server.harness import Server, sse_events

pytestmark = [pytest.mark.anyio, pytest.mark.live]


async def test_a_sandbox_is_created_runs_a_program_and_is_deleted(
    whole: Server, whole_client: httpx.AsyncClient
) -> None:
    created = await whole_client.post("/v1/sandboxes", json={"template": "base"}, headers={"Prefer": "wait=30"})
    assert created.status_code == 201
    sandbox = created.json()["sandbox"]
    assert sandbox["state"] == "running"
    assert created.headers["location"] == f"/v1/sandboxes/{sandbox['id']}"

    ran = await whole_client.post(
        f"/v1/sandboxes/{sandbox['id']}/exec", json={"argv": ["/bin/sh", "-c", "echo 42; echo no >&2; exit 7"]}
    )
    assert ran.status_code == 200, ran.text
    result = ran.json()
    assert (result["exit_code"], result["stdout"], result["stderr"]) == (7, "42\n", "no\n")

    deleted = await whole_client.delete(f"/v1/sandboxes/{sandbox['id']}")
    assert deleted.status_code == 202
    operation = await whole_client.get(f"/v1/operations/{deleted.json()['id']}", params={"wait": 10})
    assert operation.json()["status"] == "succeeded"
    shown = await whole_client.get(f"/v1/sandboxes/{sandbox['id']}")
    assert shown.json()["state"] == "deleted"


async def test_a_created_command_starts_when_its_events_are_read(
    whole: Server, whole_client: httpx.AsyncClient
) -> None:
    sandbox_id = await whole.sandbox(whole_client)
    created = await whole_client.post(
        f"/v1/sandboxes/{sandbox_id}/commands", json={"argv": ["/bin/sh", "-c", "printf one; printf two >&2"]}
    )
    assert created.status_code == 201, created.text
    session, process = created.json()["session"], created.json()["process"]
    assert process["state"] == "created"
    async with (
        httpx.AsyncClient(headers={"Authorization": f"Bearer {session['token']}"}) as reader,
        reader.stream("GET", session["events_url"]) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [event async for event in sse_events(answer)]
    assert events[0].event == "process_started"
    assert events[-1].event == "process_exited"
    assert events[-1].data["exit_code"] == 0
    output = {event.event: base64.b64decode(event.data["data"]) for event in events[1:-1]}
    assert output == {"stdout": b"one", "stderr": b"two"}
    assert [int(event.id or "") for event in events] == sorted(int(event.id or "") for event in events)


async def test_run_goes_from_nothing_to_output_in_one_call(whole_client: httpx.AsyncClient) -> None:
    answer = await whole_client.post(
        "/v1/run",
        json={"sandbox": {"template": "base"}, "command": {"shell": "echo $((6*7))"}},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["stdout"] == "42\n"
    listed = await whole_client.get("/v1/sandboxes")
    assert listed.json()["items"] == [] or listed.json()["items"][0]["state"] == "deleting"

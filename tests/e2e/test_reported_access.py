"""Case 25 of the faults that users of similar systems reported: keys and the audit log."""

import time

import pytest
from tests.e2e.instance import Instance

from space.sdk import Client, ForbiddenError, Sandbox, UnauthorizedError

pytestmark = pytest.mark.root


def test_a_key_does_only_what_it_was_made_for_and_every_attempt_is_on_record(server: Instance, client: Client) -> None:
    """Case 25 (CubeSandbox#1807)."""
    reader = client.create_token("reader", scopes=["sandboxes:read"], templates=["base"])
    writer = client.create_token("writer", scopes=["sandboxes:read", "sandboxes:write"], templates=["base"])
    with server.client(reader["token"]) as limited:
        with pytest.raises(ForbiddenError):
            Sandbox.create("base", client=limited)
        assert list(limited.sandboxes(state="running")) == []
    with server.client(writer["token"]) as limited:
        with pytest.raises(ForbiddenError):
            Sandbox.create("code-interpreter", client=limited)
        sandbox = Sandbox.create("base", client=limited)
        client.revoke_token(writer["id"])
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                limited.get_sandbox(sandbox.id)
            except UnauthorizedError:
                break
            time.sleep(0.2)
        with pytest.raises(UnauthorizedError):
            limited.get_sandbox(sandbox.id)
    client.delete_sandbox(sandbox.id)
    entries = client.get("/v1/audit", action="createSandbox")["items"]
    outcomes = {(entry["principal"], entry["outcome"]) for entry in entries}
    assert {(reader["id"], "forbidden"), (writer["id"], "forbidden"), (writer["id"], "ok")} <= outcomes

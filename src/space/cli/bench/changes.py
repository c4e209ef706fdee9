"""Asking for changes of a sandbox and waiting for their end, in as few requests as can be."""

from typing import TYPE_CHECKING, Any

from space.cli.failure import CommandError

if TYPE_CHECKING:
    from space.sdk import Client

WAIT = {"Prefer": "wait=20"}


def change(client: "Client", sandbox_id: str, kind: str) -> dict[str, Any]:
    """Make a change; returns the operation, which has succeeded."""
    answer = client.transport.request("POST", f"/v1/sandboxes/{sandbox_id}/{kind}", headers=WAIT).json()
    return ended(client, answer.get("operation", answer))


def ended(client: "Client", operation: dict[str, Any]) -> dict[str, Any]:
    """Wait until an operation has succeeded."""
    while operation["status"] in ("queued", "running"):
        operation = client.get(f"/v1/operations/{operation['id']}", wait=20)
    if operation["status"] != "succeeded":
        raise CommandError(f"{operation['kind']} ended as {operation['status']}: {operation['error']}")
    return operation

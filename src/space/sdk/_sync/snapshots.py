# Generated from ../_async/snapshots.py by scripts/generate_sync_sdk.py: change it there.
"""Snapshots of a project: found, looked at, deleted.  `Sandbox.snapshot` takes them."""

from collections.abc import Iterator

from space.sdk import http
from space.sdk._sync.transport import Transport
from space.sdk.bodies import without_none
from space.sdk.model import Page, SnapshotInfo


class Snapshots:
    """What `client.snapshots` offers."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def page(
        self, *, sandbox: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Page[SnapshotInfo]:
        """Return one page of snapshots, of all sandboxes or of one, oldest first."""
        query = without_none({"sandbox": sandbox, "limit": limit, "cursor": cursor})
        body = http.answer_object(self._transport.request("GET", "/v1/snapshots", query=query))
        return Page(tuple(SnapshotInfo.parse(item) for item in body.get("items", ())), body.get("next_cursor"))

    def list(self, *, sandbox: str | None = None) -> Iterator[SnapshotInfo]:
        """Yield all snapshots, of all sandboxes or of one, page by page."""
        cursor: str | None = None
        while True:
            page = self.page(sandbox=sandbox, cursor=cursor)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def get(self, snapshot_id: str) -> SnapshotInfo:
        """Return a snapshot, also one that a suspended sandbox made for itself."""
        response = self._transport.request("GET", f"/v1/snapshots/{http.segment(snapshot_id)}")
        return SnapshotInfo.parse(http.answer_object(response))

    def delete(self, snapshot_id: str) -> None:
        """Delete a snapshot; `FailedPreconditionError` while it is some sandbox's last durable state."""
        self._transport.request("DELETE", f"/v1/snapshots/{http.segment(snapshot_id)}")

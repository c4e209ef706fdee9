"""Snapshots of a project: found, looked at, deleted.  `AsyncSandbox.snapshot` takes them."""

from collections.abc import AsyncIterator

from space.sdk import http
from space.sdk._async.transport import AsyncTransport
from space.sdk.bodies import without_none
from space.sdk.model import Page, SnapshotInfo


class AsyncSnapshots:
    """What `client.snapshots` offers."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def page(
        self, *, sandbox: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Page[SnapshotInfo]:
        """Return one page of snapshots, of all sandboxes or of one, oldest first."""
        query = without_none({"sandbox": sandbox, "limit": limit, "cursor": cursor})
        body = http.answer_object(await self._transport.request("GET", "/v1/snapshots", query=query))
        return Page(tuple(SnapshotInfo.parse(item) for item in body.get("items", ())), body.get("next_cursor"))

    async def list(self, *, sandbox: str | None = None) -> AsyncIterator[SnapshotInfo]:
        """Yield all snapshots, of all sandboxes or of one, page by page."""
        cursor: str | None = None
        while True:
            page = await self.page(sandbox=sandbox, cursor=cursor)
            for snapshot in page.items:
                yield snapshot
            cursor = page.next_cursor
            if cursor is None:
                return

    async def get(self, snapshot_id: str) -> SnapshotInfo:
        """Return a snapshot, also one that a suspended sandbox made for itself."""
        response = await self._transport.request("GET", f"/v1/snapshots/{http.segment(snapshot_id)}")
        return SnapshotInfo.parse(http.answer_object(response))

    async def delete(self, snapshot_id: str) -> None:
        """Delete a snapshot; `FailedPreconditionError` while it is some sandbox's last durable state."""
        await self._transport.request("DELETE", f"/v1/snapshots/{http.segment(snapshot_id)}")

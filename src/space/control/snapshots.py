"""Snapshots as callers see them: listed, looked at, deleted, and found again as the beginning of a sandbox."""

from space.control.audit import entry_for
from space.core.account import Call, Principal
from space.core.errors import FailedPrecondition, NotFound, PermissionDenied
from space.core.ids import is_id
from space.core.ports import Clock
from space.core.snapshot import Purpose, Snapshot, SnapshotState
from space.core.store import Page, Store


class Snapshots:
    """The snapshots of a project.  Scopes are checked by the server."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def get(self, who: Principal, snapshot_id: str) -> Snapshot:
        """Return a snapshot of the caller's project, whatever it was made for."""
        snapshot = await self._store.snapshots.find(snapshot_id)
        if snapshot is None or snapshot.project_id != who.project_id:
            raise NotFound(f"no snapshot {snapshot_id[:64]}", id=snapshot_id[:64])
        return snapshot

    async def list(self, who: Principal, *, sandbox_id: str | None, limit: int, cursor: str | None) -> Page[Snapshot]:
        """Page through those that somebody asked for, oldest first."""
        return await self._store.snapshots.list(
            who.project_id, purpose=Purpose.NAMED, sandbox_id=sandbox_id, limit=limit, cursor=cursor
        )

    async def delete(self, call: Call, snapshot_id: str) -> None:
        """Let a snapshot go that somebody asked for; its chunks go when nobody else needs them."""
        snapshot = await self.get(call.principal, snapshot_id)
        audit = entry_for(call, self._clock.now(), target=snapshot.id, name=snapshot.name)
        await self._store.snapshots.delete(snapshot.id, snapshot.project_id, audit=audit)

    async def origin(self, who: Principal, reference: str) -> Snapshot | None:
        """Return the snapshot that a create begins with; None if `reference` is a template's.

        Raises `NotFound`, `PermissionDenied`, and `FailedPrecondition` while it is not durable yet.
        """
        if not is_id(reference, "snp"):
            return None
        snapshot = await self.get(who, reference)
        if who.templates is not None and not who.templates & {
            snapshot.id,
            snapshot.template,
            snapshot.template_digest,
        }:
            raise PermissionDenied(f"this token may not use snapshot {snapshot.id}", field="template")
        if snapshot.purpose is not Purpose.NAMED:
            raise NotFound(f"no snapshot {snapshot.id} to start from: it belongs to its sandbox", field="template")
        if snapshot.state is not SnapshotState.READY:
            raise FailedPrecondition(f"snapshot {snapshot.id} is {snapshot.state}", current_state=str(snapshot.state))
        return snapshot

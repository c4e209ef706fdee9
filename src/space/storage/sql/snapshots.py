"""The rows of snapshots: pins, what nobody needs any more, and the leases of collections."""

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime

from space.core.errors import FailedPrecondition, NotFound, StaleVersion, Unavailable
from space.core.event import AuditEntry
from space.core.ids import ProjectId, SnapshotId
from space.core.snapshot import DIGEST_BYTES, Purpose, Snapshot, SnapshotState
from space.core.store import Page
from space.storage.sql import audit as audit_log
from space.storage.sql import snapshot_rows
from space.storage.sql.pages import after_id, page_of
from space.storage.sql.reader import Reader
from space.storage.sql.snapshot_rows import COLUMNS
from space.storage.sql.values import milliseconds
from space.storage.sql.writer import Tx, Writer

_LOOKED_AT_ONCE = 500  # rows of which one query, in the event loop, asks whether anybody needs them
_NO_OPERATION = (
    "NOT EXISTS (SELECT 1 FROM operations o WHERE o.snapshot_id = s.id AND o.status IN ('queued', 'running'))"
)
_NO_SANDBOX = "NOT EXISTS (SELECT 1 FROM sandboxes b WHERE b.snapshot_id = s.id AND b.state <> 'deleted')"
_UNNEEDED = {  # by state; what starts from a snapshot names it in a row until it has started
    SnapshotState.DELETING: "1",
    SnapshotState.UPLOADING: _NO_OPERATION,
    SnapshotState.READY: f"s.purpose <> 'named' AND {_NO_OPERATION} AND {_NO_SANDBOX}",
}


def _look(state: SnapshotState) -> str:
    return (
        f"SELECT s.id, {_UNNEEDED[state]} FROM snapshots s WHERE s.state = '{state}' AND s.id > ?"  # noqa: S608
        f" ORDER BY s.id LIMIT {_LOOKED_AT_ONCE}"
    )


def _mark(state: SnapshotState) -> str:
    return (
        "UPDATE snapshots AS s SET state = 'deleting' WHERE s.id IN (SELECT value FROM json_each(?))"  # noqa: S608
        f" AND s.state = '{state}' AND {_UNNEEDED[state]} RETURNING {COLUMNS}"
    )


_LOOKS = {state: _look(state) for state in _UNNEEDED}
_MARKS = {state: _mark(state) for state in _UNNEEDED}


class SqlSnapshots:
    """`core.store.SnapshotStore`."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def pin(self, snapshot_id: SnapshotId, chunks: bytes, *, now: datetime) -> None:
        if len(chunks) % DIGEST_BYTES:
            raise ValueError(f"pins are digests of {DIGEST_BYTES} bytes each")
        await self._writer.run(lambda tx: _pin(tx, snapshot_id, chunks, milliseconds(now)))

    async def find(self, snapshot_id: str) -> Snapshot | None:
        row = self._reader.row(snapshot_rows.SELECT, (snapshot_id,))
        return snapshot_rows.decode(row) if row else None

    async def list(
        self, project_id: ProjectId, *, purpose: Purpose | None, sandbox_id: str | None, limit: int, cursor: str | None
    ) -> Page[Snapshot]:
        where, parameters = "project_id = ? AND state = 'ready' AND id > ?", [project_id, after_id(cursor, "snp")]
        if sandbox_id is not None:
            where += " AND sandbox_id = ?"
            parameters.append(sandbox_id)
        if purpose is not None:
            where += " AND purpose = ?"
            parameters.append(purpose)
        rows = self._reader.rows(
            f"SELECT {COLUMNS} FROM snapshots WHERE {where} ORDER BY id LIMIT ?",  # noqa: S608
            (*parameters, limit + 1),
        )
        return page_of([snapshot_rows.decode(row) for row in rows], limit)

    async def delete(self, snapshot_id: SnapshotId, project_id: ProjectId, *, audit: AuditEntry) -> None:
        await self._writer.run(lambda tx: _delete(tx, snapshot_id, project_id, audit))

    async def unwanted(self, *, limit: int) -> Sequence[Snapshot]:
        found: list[Snapshot] = []
        for state in _UNNEEDED:
            if len(found) < limit:
                found += await self._unwanted(state, limit - len(found))
        return found

    async def _unwanted(self, state: SnapshotState, limit: int) -> Sequence[Snapshot]:
        unneeded: list[str] = []
        after = ""
        while len(unneeded) < limit:
            rows = self._reader.rows(_LOOKS[state], (after,))
            unneeded += [row[0] for row in rows if row[1]]
            if len(rows) < _LOOKED_AT_ONCE:
                break
            after = rows[-1][0]
            await asyncio.sleep(0)
        if not unneeded:  # an idle server writes nothing
            return []
        ids = json.dumps(unneeded[:limit])
        rows = await self._writer.run(lambda tx: tx.execute(_MARKS[state], (ids,)).fetchall())
        return sorted((snapshot_rows.decode(row) for row in rows), key=lambda snapshot: snapshot.id)

    async def forget(self, snapshot_id: SnapshotId) -> None:
        await self._writer.run(
            lambda tx: tx.execute("DELETE FROM snapshots WHERE id = ? AND state = 'deleting'", (snapshot_id,)) and None
        )

    async def begin_collection(self, project_id: ProjectId, *, until: datetime, now: datetime) -> frozenset[bytes]:
        pins = await self._writer.run(
            lambda tx: _begin_collection(tx, project_id, milliseconds(until), milliseconds(now))
        )
        return frozenset(
            each[start : start + DIGEST_BYTES] for each in pins for start in range(0, len(each), DIGEST_BYTES)
        )

    async def end_collection(self, project_id: ProjectId) -> None:
        await self._writer.run(
            lambda tx: (
                tx.execute("UPDATE snapshot_collections SET until = NULL WHERE project_id = ?", (project_id,)) and None
            )
        )

    async def projects(self) -> Sequence[ProjectId]:
        rows = self._reader.rows("SELECT project_id FROM snapshot_collections ORDER BY project_id")
        return [ProjectId(row[0]) for row in rows]


def _pin(tx: Tx, snapshot_id: str, chunks: bytes, now: int) -> None:
    row = tx.row(
        "SELECT s.state, c.until FROM snapshots s JOIN snapshot_collections c ON c.project_id = s.project_id"
        " WHERE s.id = ?",
        (snapshot_id,),
    )
    if row is None or row[0] != SnapshotState.UPLOADING:
        raise StaleVersion(f"snapshot {snapshot_id} is no longer being made", id=snapshot_id)
    if row[1] is not None and row[1] > now:
        raise Unavailable(
            "chunks that nobody needs are being removed; try again in a moment",
            retry_after=min(5.0, (row[1] - now) / 1000),
        )
    tx.execute("UPDATE snapshots SET pins = ? WHERE id = ?", (chunks, snapshot_id))


def _delete(tx: Tx, snapshot_id: str, project_id: str, entry: AuditEntry) -> None:
    snapshot = snapshot_rows.select(tx, snapshot_id)
    if snapshot is None or snapshot.project_id != project_id or snapshot.state is SnapshotState.DELETING:
        raise NotFound(f"no snapshot {snapshot_id}", id=snapshot_id)
    if snapshot.purpose is not Purpose.NAMED:
        raise FailedPrecondition(
            f"snapshot {snapshot_id} was not made by name; it goes once no sandbox needs it", id=snapshot_id
        )
    if snapshot.state is not SnapshotState.READY:
        raise FailedPrecondition(f"snapshot {snapshot_id} is still being made", id=snapshot_id)
    user = tx.row("SELECT id FROM sandboxes WHERE snapshot_id = ? AND state <> 'deleted' LIMIT 1", (snapshot_id,))
    if user is not None:
        raise FailedPrecondition(
            f"sandbox {user[0]} has no later state than snapshot {snapshot_id}; suspend or snapshot it again, "
            "or delete it",
            sandbox_id=user[0],
        )
    if tx.row(f"SELECT {_NO_OPERATION} FROM snapshots s WHERE s.id = ?", (snapshot_id,)) != (1,):  # noqa: S608
        raise FailedPrecondition(f"a sandbox is being started from snapshot {snapshot_id}", id=snapshot_id)
    tx.execute("UPDATE snapshots SET state = 'deleting' WHERE id = ?", (snapshot_id,))
    audit_log.append(tx, entry)


def _begin_collection(tx: Tx, project_id: str, until: int, now: int) -> list[bytes]:
    row = tx.row("SELECT until FROM snapshot_collections WHERE project_id = ?", (project_id,))
    if row is not None and row[0] is not None and row[0] > now:
        raise Unavailable(
            f"the chunks of project {project_id} are being collected already", retry_after=(row[0] - now) / 1000
        )
    tx.execute(  # also for a project without snapshots: its first one may come while chunks of others are looked at
        "INSERT INTO snapshot_collections (project_id, until) SELECT id, ? FROM projects WHERE id = ?"
        " ON CONFLICT (project_id) DO UPDATE SET until = excluded.until",
        (until, project_id),
    )
    rows = tx.execute("SELECT pins FROM snapshots WHERE project_id = ? AND pins IS NOT NULL", (project_id,)).fetchall()
    return [row[0] for row in rows]

"""A snapshot as a row: its columns, the way there and back, and how it becomes ready.

The pins are not read with the rest: they may be large, and only the collector wants them.
"""

from datetime import datetime
from typing import Any

from space.core.errors import StaleVersion
from space.core.ids import ProjectId, SandboxId, SnapshotId
from space.core.sandbox import Resources, Sandbox
from space.core.snapshot import Published, Purpose, Snapshot, SnapshotState
from space.storage.sql.values import instant, milliseconds, optional_instant, optional_milliseconds
from space.storage.sql.writer import Tx

COLUMNS = (
    "id, project_id, sandbox_id, generation, purpose, name, state, manifest, runtime, template, template_digest,"
    " vcpus, memory_mib, disk_mib, bytes_read, bytes_new, bytes_uploaded, created_by, created_at,"
    " taken_at, ready_at"
)
SELECT = f"SELECT {COLUMNS} FROM snapshots WHERE id = ?"  # noqa: S608  constant
_PLACES = ", ".join("?" * (COLUMNS.count(",") + 1))
_INSERT = f"INSERT INTO snapshots ({COLUMNS}, pins) VALUES ({_PLACES}, (SELECT pins FROM snapshots WHERE id = ?))"  # noqa: S608


def insert(tx: Tx, snapshot: Snapshot, *, same_as: SnapshotId | None = None) -> None:
    """Add a snapshot; one that is the same moment as another needs the same chunks."""
    tx.execute(
        _INSERT,
        (
            snapshot.id,
            snapshot.project_id,
            snapshot.sandbox_id,
            snapshot.generation,
            snapshot.purpose,
            snapshot.name,
            snapshot.state,
            snapshot.manifest,
            snapshot.runtime,
            snapshot.template,
            snapshot.template_digest,
            snapshot.resources.vcpus,
            snapshot.resources.memory_mib,
            snapshot.resources.disk_mib,
            snapshot.bytes_read,
            snapshot.bytes_new,
            snapshot.bytes_uploaded,
            snapshot.created_by,
            milliseconds(snapshot.created_at),
            optional_milliseconds(snapshot.taken_at),
            optional_milliseconds(snapshot.ready_at),
            same_as,
        ),
    )
    tx.execute("INSERT OR IGNORE INTO snapshot_collections (project_id) VALUES (?)", (snapshot.project_id,))


def select(tx: Tx, snapshot_id: str) -> Snapshot | None:
    """Read a snapshot inside a transaction."""
    row = tx.row(SELECT, (snapshot_id,))
    return decode(row) if row else None


def publish(tx: Tx, sandbox: Sandbox, published: Published, *, at: datetime) -> None:
    """Make a snapshot ready, if it still is one that this machine of the sandbox is making.

    Raises:
        StaleVersion: it is not.
    """
    row = tx.row("SELECT pins IS NULL FROM snapshots WHERE id = ?", (published.snapshot_id,))
    if row is not None and row[0]:
        raise AssertionError(f"the chunks of {published.snapshot_id} were never pinned: they may be gone")
    done = tx.execute(
        "UPDATE snapshots SET state = 'ready', manifest = ?, bytes_read = ?, bytes_new = ?, bytes_uploaded = ?,"
        " taken_at = ?, ready_at = ? WHERE id = ? AND sandbox_id = ? AND generation = ? AND state = 'uploading'",
        (
            published.manifest,
            published.bytes_read,
            published.bytes_new,
            published.bytes_uploaded,
            optional_milliseconds(published.taken_at),
            milliseconds(at),
            published.snapshot_id,
            sandbox.id,
            sandbox.generation,
        ),
    )
    if done.rowcount != 1:
        raise StaleVersion(f"snapshot {published.snapshot_id} is no longer being made", id=published.snapshot_id)


def decode(row: Any) -> Snapshot:
    """Make a snapshot of a row with `COLUMNS`."""
    return Snapshot(
        id=SnapshotId(row[0]),
        project_id=ProjectId(row[1]),
        sandbox_id=SandboxId(row[2]),
        generation=row[3],
        purpose=Purpose(row[4]),
        name=row[5],
        state=SnapshotState(row[6]),
        manifest=row[7],
        runtime=row[8],
        template=row[9],
        template_digest=row[10],
        resources=Resources(vcpus=row[11], memory_mib=row[12], disk_mib=row[13]),
        bytes_read=row[14],
        bytes_new=row[15],
        bytes_uploaded=row[16],
        created_by=row[17],
        created_at=instant(row[18]),
        taken_at=optional_instant(row[19]),
        ready_at=optional_instant(row[20]),
    )

"""A sandbox as a row: its columns, and the way there and back."""

from typing import Any

from space.core.ids import NodeId, OperationId, PooledId, ProjectId, SandboxId, SnapshotId
from space.core.lifecycle import Kind, State
from space.core.sandbox import AutoLifecycle, OnIdle, Resources, Sandbox
from space.storage.sql.idleness import idle_at
from space.storage.sql.values import (
    from_json,
    instant,
    milliseconds,
    optional_instant,
    optional_milliseconds,
    to_json,
)
from space.storage.sql.writer import Tx

COLUMNS = (
    "id, project_id, template, template_digest, runtime, vcpus, memory_mib, disk_mib, env, metadata, idle_seconds,"
    " on_idle, max_lifetime_seconds, wake_on_request, secure_ports, state, version, generation, held_by, held_kind,"
    " node_id, reason, restorable, created_by, created_at, started_at, last_active_at, expires_at, deleted_at,"
    " snapshot_id, pooled_id"
)
SELECT = f"SELECT {COLUMNS} FROM sandboxes WHERE id = ?"  # noqa: S608  constant
_PLACES = ", ".join("?" * (COLUMNS.count(",") + 3))
_INSERT = f"INSERT INTO sandboxes ({COLUMNS}, shown_state, idle_at) VALUES ({_PLACES})"  # noqa: S608


def decode(row: Any) -> Sandbox:
    """Make a sandbox of a row with `COLUMNS`."""
    return Sandbox(
        id=SandboxId(row[0]),
        project_id=ProjectId(row[1]),
        template=row[2],
        template_digest=row[3],
        runtime=row[4],
        resources=Resources(vcpus=row[5], memory_mib=row[6], disk_mib=row[7]),
        env=from_json(row[8]),
        metadata=from_json(row[9]),
        auto_lifecycle=AutoLifecycle(
            idle_seconds=row[10],
            on_idle=OnIdle(row[11]),
            max_lifetime_seconds=row[12],
            wake_on_request=bool(row[13]),
        ),
        secure_ports=bool(row[14]),
        state=State(row[15]),
        version=row[16],
        generation=row[17],
        held_by=OperationId(row[18]) if row[18] else None,
        held_kind=Kind(row[19]) if row[19] else None,
        node_id=NodeId(row[20]) if row[20] else None,
        reason=row[21],
        restorable=bool(row[22]),
        created_by=row[23],
        created_at=instant(row[24]),
        started_at=optional_instant(row[25]),
        last_active_at=instant(row[26]),
        expires_at=optional_instant(row[27]),
        deleted_at=optional_instant(row[28]),
        snapshot_id=SnapshotId(row[29]) if row[29] else None,
        pooled_id=PooledId(row[30]) if row[30] else None,
    )


def size_of(row: Any) -> int:
    """Return the length of what its creator chose: up to half a megabyte."""
    return len(row[8]) + len(row[9])


def select(tx: Tx, sandbox_id: str) -> Sandbox | None:
    """Read a sandbox inside a transaction."""
    row = tx.row(SELECT, (sandbox_id,))
    return decode(row) if row else None


def insert(tx: Tx, sandbox: Sandbox) -> None:
    """Add a sandbox and the index of its metadata."""
    tx.execute(
        _INSERT,
        (
            sandbox.id,
            sandbox.project_id,
            sandbox.template,
            sandbox.template_digest,
            sandbox.runtime,
            sandbox.resources.vcpus,
            sandbox.resources.memory_mib,
            sandbox.resources.disk_mib,
            to_json(sandbox.env),
            to_json(sandbox.metadata),
            sandbox.auto_lifecycle.idle_seconds,
            sandbox.auto_lifecycle.on_idle,
            sandbox.auto_lifecycle.max_lifetime_seconds,
            int(sandbox.auto_lifecycle.wake_on_request),
            int(sandbox.secure_ports),
            sandbox.state,
            sandbox.version,
            sandbox.generation,
            sandbox.held_by,
            sandbox.held_kind,
            sandbox.node_id,
            sandbox.reason,
            int(sandbox.restorable),
            sandbox.created_by,
            milliseconds(sandbox.created_at),
            optional_milliseconds(sandbox.started_at),
            milliseconds(sandbox.last_active_at),
            optional_milliseconds(sandbox.expires_at),
            optional_milliseconds(sandbox.deleted_at),
            sandbox.snapshot_id,
            sandbox.pooled_id,
            sandbox.shown_state,
            idle_at(sandbox),
        ),
    )
    index_metadata(tx, sandbox)


def save(tx: Tx, sandbox: Sandbox) -> None:
    """Write what a change of state may have altered.  The caller has raised `version`."""
    tx.execute(
        "UPDATE sandboxes SET state = ?, shown_state = ?, version = ?, generation = ?, held_by = ?, held_kind = ?,"
        " reason = ?, restorable = ?, snapshot_id = ?, started_at = ?, last_active_at = ?, deleted_at = ?, idle_at = ?"
        " WHERE id = ?",
        (
            sandbox.state,
            sandbox.shown_state,
            sandbox.version,
            sandbox.generation,
            sandbox.held_by,
            sandbox.held_kind,
            sandbox.reason,
            int(sandbox.restorable),
            sandbox.snapshot_id,
            optional_milliseconds(sandbox.started_at),
            milliseconds(sandbox.last_active_at),
            optional_milliseconds(sandbox.deleted_at),
            idle_at(sandbox),
            sandbox.id,
        ),
    )


def index_metadata(tx: Tx, sandbox: Sandbox) -> None:
    """Rewrite the rows by which metadata is searched."""
    tx.execute("DELETE FROM sandbox_metadata WHERE sandbox_id = ?", (sandbox.id,))
    tx.executemany(
        "INSERT INTO sandbox_metadata (sandbox_id, key, value) VALUES (?, ?, ?)",
        [(sandbox.id, key, value) for key, value in sandbox.metadata.items()],
    )

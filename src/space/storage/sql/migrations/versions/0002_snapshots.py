"""Snapshots, forks and warm pools: their tables, and what sandboxes and operations know of them."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_OPEN = "status IN ('queued', 'running')"


def upgrade() -> None:
    op.add_column("projects", sa.Column("sealed_key", sa.LargeBinary()))
    _upgrade_sandboxes()
    _upgrade_operations()
    _create_snapshots()
    _create_pools()


def _upgrade_sandboxes() -> None:
    op.add_column("sandboxes", sa.Column("snapshot_id", sa.Text()))
    op.add_column("sandboxes", sa.Column("pooled_id", sa.Text()))
    op.add_column("sandboxes", sa.Column("idle_at", sa.BigInteger()))
    op.execute(  # nothing was suspended before there were snapshots
        "UPDATE sandboxes SET idle_at = last_active_at + idle_seconds * 1000"
        " WHERE (state = 'running' AND on_idle <> 'none') OR (state = 'paused' AND on_idle IN ('suspend', 'delete'))"
        " OR (state = 'failed' AND on_idle = 'delete')"
    )
    op.drop_index("sandboxes_to_delete_when_idle", "sandboxes")
    _create_index("sandboxes_by_idleness", "sandboxes", ["idle_at"], where="idle_at IS NOT NULL")
    _create_index("sandboxes_by_snapshot", "sandboxes", ["snapshot_id"], where="snapshot_id IS NOT NULL")


def _upgrade_operations() -> None:
    op.add_column("operations", sa.Column("snapshot_id", sa.Text()))
    op.add_column("operations", sa.Column("request", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("operations", sa.Column("progress", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("operations", sa.Column("waits_for", sa.Text()))
    op.drop_index("operations_claimable", "operations")
    _create_index("operations_claimable", "operations", ["next_at"], where=f"{_OPEN} AND waits_for IS NULL")
    _create_index("operations_waiting", "operations", ["waits_for"], where="waits_for IS NOT NULL")
    _create_index("operations_open_by_snapshot", "operations", ["snapshot_id"], where=_OPEN)


def _create_snapshots() -> None:
    op.create_table(
        "snapshots",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("sandbox_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("name", sa.Text()),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("manifest", sa.Text()),
        sa.Column("runtime", sa.Text(), nullable=False),
        sa.Column("template", sa.Text(), nullable=False),
        sa.Column("template_digest", sa.Text(), nullable=False),
        sa.Column("vcpus", sa.BigInteger(), nullable=False),
        sa.Column("memory_mib", sa.BigInteger(), nullable=False),
        sa.Column("disk_mib", sa.BigInteger(), nullable=False),
        sa.Column("bytes_read", sa.BigInteger(), nullable=False),
        sa.Column("bytes_new", sa.BigInteger(), nullable=False),
        sa.Column("bytes_uploaded", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("taken_at", sa.BigInteger()),
        sa.Column("ready_at", sa.BigInteger()),
        sa.Column("pins", sa.LargeBinary()),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    _create_index("snapshots_by_project", "snapshots", ["project_id", "id"])
    _create_index("snapshots_by_purpose", "snapshots", ["project_id", "purpose", "id"])
    _create_index("snapshots_by_sandbox", "snapshots", ["sandbox_id", "id"])
    _create_index("snapshots_by_state", "snapshots", ["state", "id"])
    op.create_table(
        "snapshot_collections",
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("until", sa.BigInteger()),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("project_id"),
    )


def _create_pools() -> None:
    op.create_table(
        "pools",
        sa.Column("template", sa.Text(), nullable=False),
        sa.Column("runtime", sa.Text(), nullable=False),
        sa.Column("vcpus", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("memory_mib", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("disk_mib", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("min", sa.BigInteger(), nullable=False),
        sa.Column("max", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("template", "runtime", "vcpus", "memory_mib", "disk_mib"),
    )
    op.create_table(
        "machines",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("node_epoch", sa.BigInteger(), nullable=False),
        sa.Column("template_digest", sa.Text(), nullable=False),
        sa.Column("runtime", sa.Text(), nullable=False),
        sa.Column("vcpus", sa.BigInteger(), nullable=False),
        sa.Column("memory_mib", sa.BigInteger(), nullable=False),
        sa.Column("disk_mib", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("sandbox_id", sa.Text()),
        sa.Column("generation", sa.BigInteger()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("parked_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id"),
    )
    _create_index("machines_by_node", "machines", ["node_id", "id"])
    claim = ["node_id", "template_digest", "runtime", "vcpus", "memory_mib", "disk_mib", "parked_at", "id"]
    _create_index("machines_to_claim", "machines", claim, where="state = 'parked'")


def _create_index(name: str, table: str, columns: list[str], *, where: str | None = None) -> None:
    condition = None if where is None else sa.text(where)
    op.create_index(name, table, columns, sqlite_where=condition, postgresql_where=condition)

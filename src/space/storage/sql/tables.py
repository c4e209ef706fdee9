"""The schema, as it is after the last migration; the tests compare the two.

Times are milliseconds since 1970 (UTC), flags 0 or 1, JSON is text.  Only types that SQLite and PostgreSQL share.
"""

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, LargeBinary, MetaData, Table, Text, text

metadata = MetaData()

_OPEN = text("status IN ('queued', 'running')")
_NOT_DELETED = text("state <> 'deleted'")
_CLAIMABLE = text("status IN ('queued', 'running') AND waits_for IS NULL")
_WAITING = text("waits_for IS NOT NULL")
_MAY_BE_IDLE = text("idle_at IS NOT NULL")
_HAS_SNAPSHOT = text("snapshot_id IS NOT NULL")
_PARKED = text("state = 'parked'")
_UNFINISHED = text("state IN ('created', 'running')")

projects = Table(
    "projects",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("max_sandboxes", BigInteger),
    Column("max_vcpus", BigInteger),
    Column("max_memory_mib", BigInteger),
    Column("max_disk_mib", BigInteger),
    Column("max_creates_per_minute", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("sealed_key", LargeBinary),  # for its snapshots; opened by the installation's own key only
)

users = Table(
    "users",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project_id", Text, ForeignKey("projects.id"), nullable=False),
    Column("email", Text, nullable=False, unique=True),
    Column("role", Text, nullable=False),
    Column("password_hash", Text, nullable=False),
    Column("is_disabled", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("prefix", Text, nullable=False),
    Column("secret_hash", LargeBinary, nullable=False, unique=True),
    Column("project_id", Text, ForeignKey("projects.id"), nullable=False),
    Column("user_id", Text, ForeignKey("users.id")),
    Column("scopes", Text, nullable=False),
    Column("templates", Text),
    Column("created_by", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    Column("last_used_at", BigInteger),
    Index("tokens_by_user", "user_id", "id"),
    Index("tokens_by_maker", "created_by", "id"),
)

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project_id", Text, ForeignKey("projects.id"), nullable=False),
    Column("template", Text, nullable=False),
    Column("template_digest", Text, nullable=False),
    Column("runtime", Text, nullable=False),
    Column("vcpus", BigInteger, nullable=False),
    Column("memory_mib", BigInteger, nullable=False),
    Column("disk_mib", BigInteger, nullable=False),
    Column("env", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("idle_seconds", BigInteger, nullable=False),
    Column("on_idle", Text, nullable=False),
    Column("max_lifetime_seconds", BigInteger),
    Column("wake_on_request", Integer, nullable=False),
    Column("secure_ports", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("shown_state", Text, nullable=False),  # what filters ask for: follows from state and held_kind
    Column("version", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("held_by", Text),
    Column("held_kind", Text),
    Column("node_id", Text),
    Column("reason", Text),
    Column("restorable", Integer, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("last_active_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("deleted_at", BigInteger),
    Column("snapshot_id", Text),
    Column("pooled_id", Text),
    Column("idle_at", BigInteger),  # from when it counts as idle; NULL if nothing follows from that in this state
    Index(
        "sandboxes_by_project",
        "project_id",
        "id",
        "version",
        "state",
        sqlite_where=_NOT_DELETED,
        postgresql_where=_NOT_DELETED,
    ),
    Index("sandboxes_by_state", "project_id", "shown_state", "id"),
    Index("sandboxes_by_creation", "project_id", "created_at"),
    Index("sandboxes_by_node", "node_id", sqlite_where=_NOT_DELETED, postgresql_where=_NOT_DELETED),
    Index("sandboxes_by_expiry", "expires_at", sqlite_where=_NOT_DELETED, postgresql_where=_NOT_DELETED),
    Index("sandboxes_by_deletion", "deleted_at"),
    Index("sandboxes_by_idleness", "idle_at", sqlite_where=_MAY_BE_IDLE, postgresql_where=_MAY_BE_IDLE),
    Index("sandboxes_by_snapshot", "snapshot_id", sqlite_where=_HAS_SNAPSHOT, postgresql_where=_HAS_SNAPSHOT),
)

sandbox_metadata = Table(
    "sandbox_metadata",
    metadata,
    Column("sandbox_id", Text, ForeignKey("sandboxes.id", ondelete="CASCADE"), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Index("sandbox_metadata_by_value", "key", "value", "sandbox_id"),
)

operations = Table(
    "operations",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("project_id", Text, ForeignKey("projects.id"), nullable=False),
    Column("sandbox_id", Text, ForeignKey("sandboxes.id", ondelete="CASCADE"), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("step", Text),
    Column("attempt", BigInteger, nullable=False),
    Column("error", Text),
    Column("lease_owner", Text),
    Column("lease_until", BigInteger),
    Column("next_at", BigInteger, nullable=False),  # when it may be claimed: the lease's end, or after a pause
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("snapshot_id", Text),
    Column("request", Text, nullable=False, server_default="{}"),
    Column("progress", Text, nullable=False, server_default="{}"),
    Column("waits_for", Text),  # the operation that must end first
    Index("operations_open", "sandbox_id", unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN),
    Index("operations_claimable", "next_at", sqlite_where=_CLAIMABLE, postgresql_where=_CLAIMABLE),
    Index("operations_waiting", "waits_for", sqlite_where=_WAITING, postgresql_where=_WAITING),
    Index("operations_open_by_snapshot", "snapshot_id", sqlite_where=_OPEN, postgresql_where=_OPEN),
    Index("operations_by_sandbox", "sandbox_id", "id"),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project_id", Text, ForeignKey("projects.id"), nullable=False),
    Column("sandbox_id", Text, nullable=False),  # no foreign key: it outlives the sandbox's row
    Column("generation", BigInteger, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("name", Text),
    Column("state", Text, nullable=False),
    Column("manifest", Text),
    Column("runtime", Text, nullable=False),
    Column("template", Text, nullable=False),
    Column("template_digest", Text, nullable=False),
    Column("vcpus", BigInteger, nullable=False),
    Column("memory_mib", BigInteger, nullable=False),
    Column("disk_mib", BigInteger, nullable=False),
    Column("bytes_read", BigInteger, nullable=False),
    Column("bytes_new", BigInteger, nullable=False),
    Column("bytes_uploaded", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("taken_at", BigInteger),
    Column("ready_at", BigInteger),
    Column("pins", LargeBinary),  # digests of its chunks, one after the other; last, because it may be large
    Index("snapshots_by_project", "project_id", "id"),
    Index("snapshots_by_purpose", "project_id", "purpose", "id"),
    Index("snapshots_by_sandbox", "sandbox_id", "id"),
    Index("snapshots_by_state", "state", "id"),
)

snapshot_collections = Table(
    "snapshot_collections",
    metadata,
    Column("project_id", Text, ForeignKey("projects.id"), primary_key=True),  # from its first snapshot on
    Column("until", BigInteger),  # nobody may pin before; NULL while nobody collects
)

pools = Table(
    "pools",
    metadata,
    Column("template", Text, primary_key=True),
    Column("runtime", Text, primary_key=True),
    Column("vcpus", BigInteger, primary_key=True, autoincrement=False),
    Column("memory_mib", BigInteger, primary_key=True, autoincrement=False),
    Column("disk_mib", BigInteger, primary_key=True, autoincrement=False),
    Column("min", BigInteger, nullable=False),
    Column("max", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

machines = Table(
    "machines",
    metadata,
    Column("id", Text, primary_key=True),
    Column("node_id", Text, nullable=False),
    Column("node_epoch", BigInteger, nullable=False),
    Column("template_digest", Text, nullable=False),
    Column("runtime", Text, nullable=False),
    Column("vcpus", BigInteger, nullable=False),
    Column("memory_mib", BigInteger, nullable=False),
    Column("disk_mib", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("sandbox_id", Text),
    Column("generation", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("parked_at", BigInteger),
    Index("machines_by_node", "node_id", "id"),
    Index(
        "machines_to_claim",
        "node_id",
        "template_digest",
        "runtime",
        "vcpus",
        "memory_mib",
        "disk_mib",
        "parked_at",
        "id",
        sqlite_where=_PARKED,
        postgresql_where=_PARKED,
    ),
)

events = Table(
    "events",
    metadata,
    Column("sandbox_id", Text, ForeignKey("sandboxes.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("project_id", Text, nullable=False),
    Column("operation_id", Text),
    Column("type", Text, nullable=False),
    Column("data", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

processes = Table(
    "processes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session_id", Text, nullable=False, unique=True),
    Column("sandbox_id", Text, nullable=False),  # no foreign key: its journal outlives the sandbox's row
    Column("project_id", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("spec", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("start_requested_at", BigInteger),  # set before the node is told to start it
    Column("os_pid", BigInteger),
    Column("exit_code", BigInteger),
    Column("signal", Text),
    Column("reason", Text),
    Column("stdout_bytes", BigInteger, nullable=False),
    Column("stderr_bytes", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("exited_at", BigInteger),
    Index("processes_by_sandbox", "sandbox_id", "id"),
    Index("processes_by_exit", "exited_at"),
    Index("processes_unfinished", "sandbox_id", "id", sqlite_where=_UNFINISHED, postgresql_where=_UNFINISHED),
)

session_tokens = Table(
    "session_tokens",
    metadata,
    Column("token_hash", LargeBinary, primary_key=True),
    Column("session_id", Text, ForeignKey("processes.session_id", ondelete="CASCADE"), nullable=False),
    Column("principal", Text, nullable=False),
    Column("token_id", Text, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Index("session_tokens_by_session", "session_id"),
    Index("session_tokens_by_expiry", "expires_at"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("principal_id", Text, primary_key=True),
    Column("method_path", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("request_hash", LargeBinary, nullable=False),
    Column("target_id", Text),  # what the change made: an operation, a process …; set in the change's transaction
    Column("status", Integer),  # of the answer; NULL while the request is in flight
    Column("headers", Text),
    Column("body", LargeBinary),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Index("idempotency_keys_by_expiry", "expires_at"),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("project_id", Text),
    Column("principal", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text),
    Column("outcome", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("address", Text),
    Column("details", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("audit_by_time", "at"),
    sqlite_autoincrement=True,
)

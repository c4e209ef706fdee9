"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('audit',
    sa.Column('seq', sa.Integer(), autoincrement=True, nullable=False),
    sa.Column('project_id', sa.Text(), nullable=True),
    sa.Column('principal', sa.Text(), nullable=False),
    sa.Column('action', sa.Text(), nullable=False),
    sa.Column('target', sa.Text(), nullable=True),
    sa.Column('outcome', sa.Text(), nullable=False),
    sa.Column('request_id', sa.Text(), nullable=False),
    sa.Column('address', sa.Text(), nullable=True),
    sa.Column('details', sa.Text(), nullable=False),
    sa.Column('at', sa.BigInteger(), nullable=False),
    sa.PrimaryKeyConstraint('seq'),
    sqlite_autoincrement=True
    )
    op.create_index('audit_by_time', 'audit', ['at'], unique=False)
    op.create_table('idempotency_keys',
    sa.Column('principal_id', sa.Text(), nullable=False),
    sa.Column('method_path', sa.Text(), nullable=False),
    sa.Column('key', sa.Text(), nullable=False),
    sa.Column('request_hash', sa.LargeBinary(), nullable=False),
    sa.Column('target_id', sa.Text(), nullable=True),
    sa.Column('status', sa.Integer(), nullable=True),
    sa.Column('headers', sa.Text(), nullable=True),
    sa.Column('body', sa.LargeBinary(), nullable=True),
    sa.Column('created_at', sa.BigInteger(), nullable=False),
    sa.Column('expires_at', sa.BigInteger(), nullable=False),
    sa.PrimaryKeyConstraint('principal_id', 'method_path', 'key')
    )
    op.create_index('idempotency_keys_by_expiry', 'idempotency_keys', ['expires_at'], unique=False)
    op.create_table('processes',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('session_id', sa.Text(), nullable=False),
    sa.Column('sandbox_id', sa.Text(), nullable=False),
    sa.Column('project_id', sa.Text(), nullable=False),
    sa.Column('generation', sa.BigInteger(), nullable=False),
    sa.Column('spec', sa.Text(), nullable=False),
    sa.Column('state', sa.Text(), nullable=False),
    sa.Column('start_requested_at', sa.BigInteger(), nullable=True),
    sa.Column('os_pid', sa.BigInteger(), nullable=True),
    sa.Column('exit_code', sa.BigInteger(), nullable=True),
    sa.Column('signal', sa.Text(), nullable=True),
    sa.Column('reason', sa.Text(), nullable=True),
    sa.Column('stdout_bytes', sa.BigInteger(), nullable=False),
    sa.Column('stderr_bytes', sa.BigInteger(), nullable=False),
    sa.Column('created_at', sa.BigInteger(), nullable=False),
    sa.Column('started_at', sa.BigInteger(), nullable=True),
    sa.Column('exited_at', sa.BigInteger(), nullable=True),
    sa.PrimaryKeyConstraint('id'),
    sa.UniqueConstraint('session_id')
    )
    op.create_index('processes_by_exit', 'processes', ['exited_at'], unique=False)
    op.create_index('processes_by_sandbox', 'processes', ['sandbox_id', 'id'], unique=False)
    op.create_index('processes_unfinished', 'processes', ['sandbox_id', 'id'], unique=False, sqlite_where=sa.text("state IN ('created', 'running')"), postgresql_where=sa.text("state IN ('created', 'running')"))
    op.create_table('projects',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('max_sandboxes', sa.BigInteger(), nullable=True),
    sa.Column('max_vcpus', sa.BigInteger(), nullable=True),
    sa.Column('max_memory_mib', sa.BigInteger(), nullable=True),
    sa.Column('max_disk_mib', sa.BigInteger(), nullable=True),
    sa.Column('max_creates_per_minute', sa.BigInteger(), nullable=True),
    sa.Column('created_at', sa.BigInteger(), nullable=False),
    sa.PrimaryKeyConstraint('id'),
    sa.UniqueConstraint('name')
    )
    op.create_table('sandboxes',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('project_id', sa.Text(), nullable=False),
    sa.Column('template', sa.Text(), nullable=False),
    sa.Column('template_digest', sa.Text(), nullable=False),
    sa.Column('runtime', sa.Text(), nullable=False),
    sa.Column('vcpus', sa.BigInteger(), nullable=False),
    sa.Column('memory_mib', sa.BigInteger(), nullable=False),
    sa.Column('disk_mib', sa.BigInteger(), nullable=False),
    sa.Column('env', sa.Text(), nullable=False),
    sa.Column('metadata', sa.Text(), nullable=False),
    sa.Column('idle_seconds', sa.BigInteger(), nullable=False),
    sa.Column('on_idle', sa.Text(), nullable=False),
    sa.Column('max_lifetime_seconds', sa.BigInteger(), nullable=True),
    sa.Column('wake_on_request', sa.Integer(), nullable=False),
    sa.Column('secure_ports', sa.Integer(), nullable=False),
    sa.Column('state', sa.Text(), nullable=False),
    sa.Column('shown_state', sa.Text(), nullable=False),
    sa.Column('version', sa.BigInteger(), nullable=False),
    sa.Column('generation', sa.BigInteger(), nullable=False),
    sa.Column('held_by', sa.Text(), nullable=True),
    sa.Column('held_kind', sa.Text(), nullable=True),
    sa.Column('node_id', sa.Text(), nullable=True),
    sa.Column('reason', sa.Text(), nullable=True),
    sa.Column('restorable', sa.Integer(), nullable=False),
    sa.Column('created_by', sa.Text(), nullable=False),
    sa.Column('created_at', sa.BigInteger(), nullable=False),
    sa.Column('started_at', sa.BigInteger(), nullable=True),
    sa.Column('last_active_at', sa.BigInteger(), nullable=False),
    sa.Column('expires_at', sa.BigInteger(), nullable=True),
    sa.Column('deleted_at', sa.BigInteger(), nullable=True),
    sa.ForeignKeyConstraint(['project_id'], ['projects.id'], ),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index('sandboxes_by_creation', 'sandboxes', ['project_id', 'created_at'], unique=False)
    op.create_index('sandboxes_by_deletion', 'sandboxes', ['deleted_at'], unique=False)
    op.create_index('sandboxes_by_expiry', 'sandboxes', ['expires_at'], unique=False, sqlite_where=sa.text("state <> 'deleted'"), postgresql_where=sa.text("state <> 'deleted'"))
    op.create_index('sandboxes_by_node', 'sandboxes', ['node_id'], unique=False, sqlite_where=sa.text("state <> 'deleted'"), postgresql_where=sa.text("state <> 'deleted'"))
    op.create_index('sandboxes_by_project', 'sandboxes', ['project_id', 'id', 'version', 'state'], unique=False, sqlite_where=sa.text("state <> 'deleted'"), postgresql_where=sa.text("state <> 'deleted'"))
    op.create_index('sandboxes_by_state', 'sandboxes', ['project_id', 'shown_state', 'id'], unique=False)
    op.create_index('sandboxes_to_delete_when_idle', 'sandboxes', ['last_active_at'], unique=False, sqlite_where=sa.text("on_idle = 'delete' AND state <> 'deleted'"), postgresql_where=sa.text("on_idle = 'delete' AND state <> 'deleted'"))
    op.create_table('session_tokens',
    sa.Column('token_hash', sa.LargeBinary(), nullable=False),
    sa.Column('session_id', sa.Text(), nullable=False),
    sa.Column('principal', sa.Text(), nullable=False),
    sa.Column('token_id', sa.Text(), nullable=False),
    sa.Column('expires_at', sa.BigInteger(), nullable=False),
    sa.ForeignKeyConstraint(['session_id'], ['processes.session_id'], ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('token_hash')
    )
    op.create_index('session_tokens_by_expiry', 'session_tokens', ['expires_at'], unique=False)
    op.create_index('session_tokens_by_session', 'session_tokens', ['session_id'], unique=False)
    op.create_table('users',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('project_id', sa.Text(), nullable=False),
    sa.Column('email', sa.Text(), nullable=False),
    sa.Column('role', sa.Text(), nullable=False),
    sa.Column('password_hash', sa.Text(), nullable=False),
    sa.Column('is_disabled', sa.Integer(), nullable=False),
    sa.Column('created_at', sa.BigInteger(), nullable=False),
    sa.ForeignKeyConstraint(['project_id'], ['projects.id'], ),
    sa.PrimaryKeyConstraint('id'),
    sa.UniqueConstraint('email')
    )
    op.create_table('events',
    sa.Column('sandbox_id', sa.Text(), nullable=False),
    sa.Column('seq', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('project_id', sa.Text(), nullable=False),
    sa.Column('operation_id', sa.Text(), nullable=True),
    sa.Column('type', sa.Text(), nullable=False),
    sa.Column('data', sa.Text(), nullable=False),
    sa.Column('at', sa.BigInteger(), nullable=False),
    sa.ForeignKeyConstraint(['sandbox_id'], ['sandboxes.id'], ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('sandbox_id', 'seq'),
    sqlite_with_rowid=False
    )
    op.create_table('operations',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('project_id', sa.Text(), nullable=False),
    sa.Column('sandbox_id', sa.Text(), nullable=False),
    sa.Column('generation', sa.BigInteger(), nullable=False),
    sa.Column('status', sa.Text(), nullable=False),
    sa.Column('step', sa.Text(), nullable=True),
    sa.Column('attempt', sa.BigInteger(), nullable=False),
    sa.Column('error', sa.Text(), nullable=True),
    sa.Column('lease_owner', sa.Text(), nullable=True),
    sa.Column('lease_until', sa.BigInteger(), nullable=True),
    sa.Column('next_at', sa.BigInteger(), nullable=False),
    sa.Column('created_at', sa.BigInteger(), nullable=False),
    sa.Column('started_at', sa.BigInteger(), nullable=True),
    sa.Column('finished_at', sa.BigInteger(), nullable=True),
    sa.ForeignKeyConstraint(['project_id'], ['projects.id'], ),
    sa.ForeignKeyConstraint(['sandbox_id'], ['sandboxes.id'], ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index('operations_by_sandbox', 'operations', ['sandbox_id', 'id'], unique=False)
    op.create_index('operations_claimable', 'operations', ['next_at'], unique=False, sqlite_where=sa.text("status IN ('queued', 'running')"), postgresql_where=sa.text("status IN ('queued', 'running')"))
    op.create_index('operations_open', 'operations', ['sandbox_id'], unique=True, sqlite_where=sa.text("status IN ('queued', 'running')"), postgresql_where=sa.text("status IN ('queued', 'running')"))
    op.create_table('sandbox_metadata',
    sa.Column('sandbox_id', sa.Text(), nullable=False),
    sa.Column('key', sa.Text(), nullable=False),
    sa.Column('value', sa.Text(), nullable=False),
    sa.ForeignKeyConstraint(['sandbox_id'], ['sandboxes.id'], ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('sandbox_id', 'key')
    )
    op.create_index('sandbox_metadata_by_value', 'sandbox_metadata', ['key', 'value', 'sandbox_id'], unique=False)
    op.create_table('tokens',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('prefix', sa.Text(), nullable=False),
    sa.Column('secret_hash', sa.LargeBinary(), nullable=False),
    sa.Column('project_id', sa.Text(), nullable=False),
    sa.Column('user_id', sa.Text(), nullable=True),
    sa.Column('scopes', sa.Text(), nullable=False),
    sa.Column('templates', sa.Text(), nullable=True),
    sa.Column('created_by', sa.Text(), nullable=False),
    sa.Column('created_at', sa.BigInteger(), nullable=False),
    sa.Column('expires_at', sa.BigInteger(), nullable=True),
    sa.Column('revoked_at', sa.BigInteger(), nullable=True),
    sa.Column('last_used_at', sa.BigInteger(), nullable=True),
    sa.ForeignKeyConstraint(['project_id'], ['projects.id'], ),
    sa.ForeignKeyConstraint(['user_id'], ['users.id'], ),
    sa.PrimaryKeyConstraint('id'),
    sa.UniqueConstraint('secret_hash')
    )
    op.create_index('tokens_by_maker', 'tokens', ['created_by', 'id'], unique=False)
    op.create_index('tokens_by_user', 'tokens', ['user_id', 'id'], unique=False)

"""Databases that an earlier release has written."""

import contextlib
import shutil
import sqlite3
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from space.core.ids import SandboxId
from space.core.lifecycle import Kind
from space.storage.sql import schema
from space.storage.sql.store import open_store
from space.testing.rows import PROJECT, START, change, lease, new_id, succeed

pytestmark = pytest.mark.anyio

_MS = int(START.timestamp() * 1000)
_SANDBOX, _IDLE_SANDBOX = (SandboxId(new_id("sbx")) for _ in range(2))
_COLUMNS_OF_0001 = (
    "id, project_id, template, template_digest, runtime, vcpus, memory_mib, disk_mib, env, metadata, idle_seconds,"
    " on_idle, wake_on_request, secure_ports, state, shown_state, version, generation, held_by, held_kind, restorable,"
    " created_by, created_at, last_active_at"
)
_ROWS_OF_0001 = f"""
INSERT INTO projects (id, name, created_at) VALUES ('{PROJECT}', 'one', {_MS});
INSERT INTO sandboxes ({_COLUMNS_OF_0001}) VALUES
    ('{_SANDBOX}', '{PROJECT}', 'base', 'sha256:1', 'fake', 1, 512, 2048, '{{}}', '{{}}', 60, 'none', 0, 1, 'running',
     'deleting', 3, 2, 'ops1', 'delete', 0, 'tok', {_MS}, {_MS}),
    ('{_IDLE_SANDBOX}', '{PROJECT}', 'base', 'sha256:1', 'fake', 1, 512, 2048, '{{}}', '{{}}', 60, 'suspend', 0, 1,
     'running', 'running', 3, 1, NULL, NULL, 0, 'tok', {_MS}, {_MS});
INSERT INTO operations (id, kind, project_id, sandbox_id, generation, status, attempt, next_at, created_at) VALUES
    ('ops1', 'delete', '{PROJECT}', '{_SANDBOX}', 2, 'queued', 1, {_MS}, {_MS});
"""  # noqa: S608


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "space.db"


async def test_a_database_of_before_snapshots_is_brought_up_to_date_with_its_rows(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as old:
        released = tmp_path / "migrations"
        shutil.copytree(Path(schema.__file__).with_name("migrations"), released)
        for path in (released / "versions").glob("*.py"):
            if not path.name.startswith("0001"):
                path.unlink()
        old.setattr(schema, "_MIGRATIONS", released)
        old.setattr(schema, "HEAD", "0001")
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
            schema.upgrade(connection)
            connection.executescript(_ROWS_OF_0001)
    store = open_store(database)
    sandbox = await store.sandboxes.find(_SANDBOX)
    assert sandbox is not None
    assert (sandbox.state, sandbox.snapshot_id, sandbox.restorable, sandbox.pooled_id) == ("running", None, False, None)
    (operation,) = await store.operations.claim(lease(), now=START, limit=9)
    assert (operation.kind, operation.request, operation.progress, operation.waits_for) == ("delete", {}, {}, None)
    idle_at = START + timedelta(seconds=60)
    assert await store.sandboxes.overdue(idle_at - timedelta(seconds=1), limit=9) == []
    found = await store.sandboxes.overdue(idle_at, limit=9)
    assert [(sandbox_id, reason) for sandbox_id, _, reason in found] == [(_IDLE_SANDBOX, "idle")]
    assert await store.accounts.project_key(PROJECT, otherwise=b"sealed") == b"sealed"
    suspended = await store.sandboxes.change(change(replace(sandbox, id=_IDLE_SANDBOX), Kind.SUSPEND))
    assert (await succeed(store, suspended.operation)).restorable
    await store.aclose()
    await open_store(database).aclose()

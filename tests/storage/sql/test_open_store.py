"""Opening a data directory: locks, schemas, and disks that do not cooperate."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from space.core.errors import FailedPrecondition, InsufficientStorage, SpaceError, Unavailable
from space.host.process import run
from space.storage.sql import schema
from space.storage.sql.store import open_store
from space.storage.sql.tables import metadata
from space.testing.conformance.store import add_projects
from space.testing.rows import PROJECT, START, creation, fork, lease, succeed

pytestmark = pytest.mark.anyio


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "space.db"


async def test_an_acknowledged_change_survives_a_power_cut(database: Path) -> None:
    """Nothing weaker than FULL syncs the log at every commit."""
    store = open_store(database)
    assert await store._writer.run(lambda tx: tx.row("PRAGMA synchronous")) == (2,)
    assert await store._writer.run(lambda tx: tx.row("PRAGMA journal_mode")) == ("wal",)
    assert await store._writer.run(lambda tx: tx.row("PRAGMA foreign_keys")) == (1,)
    await store.aclose()


async def test_nobody_else_may_read_the_database(database: Path) -> None:
    store = open_store(database)
    await add_projects(store)
    assert {path.stat().st_mode & 0o077 for path in database.parent.iterdir()} == {0}
    await store.aclose()


async def test_a_second_server_on_one_data_directory_is_told_who_has_it(database: Path) -> None:
    first = open_store(database)
    try:
        with pytest.raises(FailedPrecondition, match=rf"pid {os.getpid()}.*SPACE_DATA_DIR"):
            open_store(database)
    finally:
        await first.aclose()
    await open_store(database).aclose()  # and afterwards it is free


async def test_the_schema_after_all_migrations_is_that_of_the_tables(database: Path) -> None:
    await open_store(database).aclose()
    with create_engine(f"sqlite:///{database}").connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_head_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(schema.__file__).with_name("migrations")))
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [schema.HEAD]


async def test_migrating_twice_changes_nothing_and_keeps_the_rows(database: Path) -> None:
    store = open_store(database)
    await add_projects(store)
    made = creation()
    await store.sandboxes.create(made)
    await store.aclose()
    store = open_store(database)
    assert await store.sandboxes.find(made.sandbox.id) == made.sandbox
    await store.aclose()


async def test_a_newer_schema_is_refused_with_what_to_do_and_left_alone(database: Path) -> None:
    await open_store(database).aclose()
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = database.read_bytes()
    with pytest.raises(FailedPrecondition, match=r"newer SPACE.*restore a backup") as caught:
        open_store(database)
    assert caught.value.details == {"schema": "9999", "known": schema.HEAD}
    assert database.read_bytes() == before


async def test_a_migration_that_fails_leaves_the_database_as_it_was(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await open_store(database).aclose()
    broken = tmp_path / "migrations"
    shutil.copytree(Path(schema.__file__).with_name("migrations"), broken)
    (broken / "versions" / "0003_broken.py").write_text(
        "from alembic import op\nrevision = '0003'\ndown_revision = '0002'\n"
        "def upgrade():\n    op.execute('CREATE TABLE half (a)')\n    op.execute('SELECT nonsense FROM nowhere')\n"
    )
    monkeypatch.setattr(schema, "_MIGRATIONS", broken)
    monkeypatch.setattr(schema, "HEAD", "0003")
    monkeypatch.setattr("space.storage.sql.store.HEAD", "0003")
    with pytest.raises(SpaceError):
        open_store(database)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert schema.current_revision(connection) == "0002"
        assert connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'half'").fetchone() is None


async def test_what_is_no_database_is_refused(database: Path) -> None:
    database.write_bytes(b"not a database at all " * 100)
    with pytest.raises(Unavailable, match=r"damaged.*backup"):
        open_store(database)


async def test_a_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="data directory"):
        open_store(tmp_path / "missing" / "space.db")


async def test_a_locked_database_is_refused_when_opening(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await open_store(database).aclose()
    monkeypatch.setattr("space.storage.sql.store._WRITER_PATIENCE_MS", 50)
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked"):
            open_store(database)
    await open_store(database).aclose()


async def test_opening_frees_the_leases_of_dead_servers(database: Path) -> None:
    store = open_store(database)
    await add_projects(store)
    made = creation(owner="dead")
    await store.sandboxes.create(made)
    await store.aclose()
    store = open_store(database)
    (claimed,) = await store.operations.claim(lease("new"), now=START, limit=9)
    assert (claimed.id, claimed.attempt) == (made.operation.id, 2)
    await store.aclose()


async def test_opening_ends_the_collections_of_dead_servers_and_starts_no_child_that_waits(database: Path) -> None:
    store = open_store(database)
    await add_projects(store)
    made = creation(owner="dead")
    await store.sandboxes.create(made)
    sandbox = await succeed(store, made.operation)
    forked = await store.sandboxes.fork(fork(sandbox, 2, owner="dead"))
    day = timedelta(days=1)
    await store.snapshots.begin_collection(PROJECT, until=START + day, now=START)
    await store.aclose()
    store = open_store(database)
    claimed = await store.operations.claim(lease("new"), now=START, limit=9)
    assert [row.id for row in claimed] == [forked.changed.operation.id]
    assert (await succeed(store, claimed[0])).restorable, "its chunks were pinned"
    await store.aclose()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    asyncio.run(run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)]))
    yield directory
    asyncio.run(run(["umount", "-l", str(directory)]))


def fill(ballast: Path) -> None:
    """Use up the file system that `ballast` is on."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.root
async def test_a_full_disk_refuses_writes_and_loses_nothing(small_disk: Path) -> None:
    store = open_store(small_disk / "space.db")
    await add_projects(store)
    kept = creation()
    await store.sandboxes.create(kept)
    ballast = small_disk / "ballast"
    fill(ballast)
    refused = []
    for _ in range(50):  # what the log file still has room for is accepted, then no more
        made = creation(env={"filling": "x" * 20_000})
        try:
            await store.sandboxes.create(made)
        except InsufficientStorage:
            refused.append(made)
        else:
            assert await store.sandboxes.find(made.sandbox.id) == made.sandbox
    assert refused
    assert await store.sandboxes.find(kept.sandbox.id) == kept.sandbox, "reading goes on"
    for made in refused:
        assert await store.sandboxes.find(made.sandbox.id) is None
    ballast.unlink()
    await store.sandboxes.create(refused[0])
    await store.aclose()
    store = open_store(small_disk / "space.db")
    assert await store.sandboxes.find(kept.sandbox.id) == kept.sandbox
    assert await store.sandboxes.find(refused[0].sandbox.id) == refused[0].sandbox
    await store.aclose()


@pytest.mark.root
async def test_opening_on_a_full_disk_says_so(small_disk: Path) -> None:
    fill(small_disk / "ballast")
    with pytest.raises((InsufficientStorage, Unavailable)):
        open_store(small_disk / "space.db")


@pytest.mark.root
async def test_a_database_that_became_read_only_refuses_writes_and_goes_on_reading(small_disk: Path) -> None:
    store = open_store(small_disk / "space.db")
    await add_projects(store)
    kept = creation()
    await store.sandboxes.create(kept)
    await store._writer.run(lambda tx: tx.execute("PRAGMA query_only = ON") and None)
    with pytest.raises(Unavailable, match="read-only"):
        await store.sandboxes.create(creation())
    assert await store.sandboxes.find(kept.sandbox.id) == kept.sandbox
    await store.aclose()


@pytest.mark.root
async def test_a_read_only_data_directory_is_refused_when_opening(small_disk: Path) -> None:
    await open_store(small_disk / "space.db").aclose()
    await run(["mount", "-o", "remount,ro", str(small_disk)])
    with pytest.raises(Unavailable, match=r"[Rr]ead-only"):
        open_store(small_disk / "space.db")

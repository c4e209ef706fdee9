"""Bring a database to the schema that this program knows; never back."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any, cast

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import StaticPool, create_engine

from space.core.errors import FailedPrecondition

HEAD = "0001"  #: the newest migration; checked without loading Alembic when there is nothing to do
_MIGRATIONS = Path(__file__).with_name("migrations")


def current_revision(connection: sqlite3.Connection) -> str | None:
    """Return the migration that was applied last; None for an empty database."""
    exists = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone() if exists else None
    return cast(str, row[0]) if row else None


def check_file(path: Path) -> None:
    """Say whether this program may open a database, before anything is stopped or changed for it.

    Raises:
        FailedPrecondition: a newer program has written it.
    """
    if not path.exists():
        return
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as connection:
        try:
            revision = current_revision(connection)
        except sqlite3.Error:
            return  # whatever is wrong with the file, opening it says so better
    if revision is not None and revision > HEAD:
        raise _newer(revision)


def upgrade(connection: sqlite3.Connection) -> None:
    """Apply what is missing, in one transaction.

    Raises:
        FailedPrecondition: a newer program has written this database.
    """
    revision = current_revision(connection)
    if revision == HEAD:
        return
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    scripts = ScriptDirectory.from_config(config)
    if revision is not None and revision not in {script.revision for script in scripts.walk_revisions()}:
        raise _newer(revision)
    _migrate(connection, config, scripts)


def _newer(revision: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"the database has schema {revision}, written by a newer SPACE; this one knows schemas up to {HEAD}. "
        "Start that version or a newer one, or restore a backup made before the upgrade",
        schema=revision,
        known=HEAD,
    )


def _migrate(connection: sqlite3.Connection, config: Config, scripts: ScriptDirectory) -> None:
    def steps(revision: Any, _context: Any) -> Any:
        return scripts._upgrade_revs("head", revision)

    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    with engine.connect() as wrapped:
        config.attributes["connection"] = wrapped
        connection.execute("BEGIN EXCLUSIVE")  # ours: sqlite3 would commit before each CREATE
        with EnvironmentContext(config, scripts, fn=steps):
            scripts.run_env()  # commits; if it raises, leaving the block rolls back

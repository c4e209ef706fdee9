"""Bring a database to the schema that this program knows; never back."""

import sqlite3
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import StaticPool, create_engine

from space.storage.sql.revision import HEAD, current_revision, newer

_MIGRATIONS = Path(__file__).with_name("migrations")


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
        raise newer(revision)
    _migrate(connection, config, scripts)


def _migrate(connection: sqlite3.Connection, config: Config, scripts: ScriptDirectory) -> None:
    def steps(revision: Any, _context: Any) -> Any:
        return scripts._upgrade_revs("head", revision)

    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    with engine.connect() as wrapped:
        config.attributes["connection"] = wrapped
        connection.execute("BEGIN EXCLUSIVE")  # ours: sqlite3 would commit before each CREATE
        with EnvironmentContext(config, scripts, fn=steps):
            scripts.run_env()  # commits; if it raises, leaving the block rolls back

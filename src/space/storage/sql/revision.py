"""Which schema a database has, without loading Alembic."""

import contextlib
import sqlite3
from pathlib import Path
from typing import cast

from space.core.errors import FailedPrecondition

HEAD = "0002"  #: the newest migration; checked without loading Alembic when there is nothing to do


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
        raise newer(revision)


def newer(revision: str) -> FailedPrecondition:
    """Return the refusal of a database that a newer program has written."""
    return FailedPrecondition(
        f"the database has schema {revision}, written by a newer SPACE; this one knows schemas up to {HEAD}. "
        "Start that version or a newer one, or restore a backup made before the upgrade",
        schema=revision,
        known=HEAD,
    )

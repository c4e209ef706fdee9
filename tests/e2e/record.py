"""Moving a suspended sandbox's record to another instance: the seam that stands in until there are several nodes.

What is moved is rows, and the project's key, which each installation seals with its own.  The snapshot itself is in the
object store that both use.
"""

import sqlite3
from pathlib import Path

from tests.e2e.instance import Instance

from space.storage.seal import KeyFile

#: Tables with the rows of one sandbox, and the column that names it; parents come first.
_TABLES = (
    ("sandboxes", "id"),
    ("sandbox_metadata", "sandbox_id"),
    ("snapshots", "sandbox_id"),
    ("operations", "sandbox_id"),
    ("events", "sandbox_id"),
    ("processes", "sandbox_id"),
)


def move(sandbox_id: str, source: Instance, target: Instance) -> str:
    """Copy a suspended sandbox's rows and its project; return the project's id.  No server of `target` may run."""
    with _database(source) as rows, _database(target) as into:
        (node,) = into.execute("SELECT DISTINCT node_id FROM sandboxes").fetchone()
        (project,) = rows.execute("SELECT project_id FROM sandboxes WHERE id = ?", (sandbox_id,)).fetchone()
        _copy(rows, into, "projects", "id", project)
        for table, column in _TABLES:
            _copy(rows, into, table, column, sandbox_id)
        into.execute("UPDATE sandboxes SET node_id = ? WHERE id = ?", (node, sandbox_id))
        (sealed,) = rows.execute("SELECT sealed_key FROM projects WHERE id = ?", (project,)).fetchone()
        context = f"project-key:{project}"
        key = KeyFile(source.data_dir / "seal.key").open(sealed, context=context)
        sealed = KeyFile(target.data_dir / "seal.key").seal(key, context=context)
        into.execute("UPDATE projects SET sealed_key = ? WHERE id = ?", (sealed, project))
    return str(project)


def _database(instance: Instance) -> sqlite3.Connection:
    path: Path = instance.data_dir / "space.db"
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    return connection


def _copy(rows: sqlite3.Connection, into: sqlite3.Connection, table: str, column: str, value: str) -> None:
    for row in rows.execute(f"SELECT * FROM {table} WHERE {column} = ?", (value,)):  # noqa: S608  constants
        found = dict(row)
        if table == "projects":
            found["name"] = "moved"  # its own is taken here
        names, marks = ", ".join(found), ", ".join("?" * len(found))
        into.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(found.values()))  # noqa: S608

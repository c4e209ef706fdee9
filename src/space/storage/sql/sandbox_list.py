"""Pages of sandboxes: which ids, in the order of ids, after a cursor.

Only `(id, version)` is selected here: what the caller holds in its cache at that version need not be read or decoded
again, which makes a page of 100 rows several times cheaper.
"""

import base64
import binascii
import contextlib
import hashlib
from typing import Any

from sqlalchemy import Select, exists, or_, select

from space.core.errors import InvalidRequest
from space.core.ids import ProjectId, is_id
from space.core.store import SandboxFilter
from space.storage.sql.reader import compiled
from space.storage.sql.tables import sandbox_metadata, sandboxes
from space.storage.sql.values import milliseconds

PLAIN = SandboxFilter()  #: no filter at all
_NEWEST = "SELECT id, version FROM sandboxes WHERE project_id = ? AND state <> 'deleted' ORDER BY id DESC LIMIT ?"
_NEWEST_AFTER = (
    "SELECT id, version FROM sandboxes WHERE project_id = ? AND state <> 'deleted' AND id < ? ORDER BY id DESC LIMIT ?"
)


def query(project_id: ProjectId, where: SandboxFilter, *, limit: int, cursor: str | None) -> tuple[str, Any]:
    """Return SQL and parameters that select `(id, version)` of one page."""
    after = _read_cursor(cursor, where) if cursor is not None else None
    if where == PLAIN:  # by far the most frequent, so it is not composed each time
        return (_NEWEST, (project_id, limit)) if after is None else (_NEWEST_AFTER, (project_id, after, limit))
    return compiled(_compose(project_id, where, limit, after))


def _compose(project_id: ProjectId, where: SandboxFilter, limit: int, after: str | None) -> Select[Any]:
    row = sandboxes.c
    statement = select(row.id, row.version).where(row.project_id == project_id)
    if where.state is not None:
        statement = statement.where(row.shown_state == where.state)
    else:
        statement = statement.where(row.state != "deleted")
    if where.template is not None:
        statement = statement.where(or_(row.template == where.template, row.template_digest == where.template))
    if where.runtime is not None:
        statement = statement.where(row.runtime == where.runtime)
    if where.created_after is not None:
        statement = statement.where(row.created_at >= milliseconds(where.created_after))
    if where.created_before is not None:
        statement = statement.where(row.created_at < milliseconds(where.created_before))
    for key, value in where.metadata.items():
        entry = sandbox_metadata.alias()
        statement = statement.where(
            exists().where(entry.c.sandbox_id == row.id, entry.c.key == key, entry.c.value == value)
        )
    if after is not None:
        statement = statement.where(row.id < after if where.newest_first else row.id > after)
    return statement.order_by(row.id.desc() if where.newest_first else row.id).limit(limit)


def make_cursor(last_id: str, where: SandboxFilter) -> str:
    """Return the cursor after `last_id`, good for this filter only."""
    return base64.urlsafe_b64encode(_digest(where) + last_id.encode()).rstrip(b"=").decode()


def _read_cursor(cursor: str, where: SandboxFilter) -> str:
    raw, last_id = b"", ""
    with contextlib.suppress(UnicodeError, binascii.Error):
        raw = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        last_id = raw[6:].decode("ascii")
    if raw[:6] != _digest(where) or not is_id(last_id, "sbx"):
        raise InvalidRequest(
            "the cursor is not one that this list gave out; repeat the filters and the order, or start without one",
            field="cursor",
        )
    return last_id


def _digest(where: SandboxFilter) -> bytes:
    return hashlib.sha256(repr(where).encode("utf-8", "surrogatepass")).digest()[:6]

"""The audit log.

It is read backwards by `seq` in windows of bounded size, so that a filter without matches in a long log holds up the
event loop only for moments, and appending costs no index but that of time.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from space.core.errors import InvalidRequest
from space.core.event import AuditEntry
from space.core.ids import ProjectId
from space.core.store import AuditFilter, Page
from space.storage.sql.reader import Reader
from space.storage.sql.values import from_json, instant, milliseconds, to_json
from space.storage.sql.writer import Tx, Writer

_COLUMNS = "project_id, principal, action, target, outcome, request_id, address, details, at"
_INSERT = f"INSERT INTO audit ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - constants only
_WINDOW = 2000
_SKEW = 1000  # `at` is taken before the commit that gives `seq`, so neighbours may be out of order


def append(tx: Tx, entry: AuditEntry) -> None:
    """Add an entry inside the transaction of the change that it tells of."""
    tx.execute(
        _INSERT,
        (
            entry.project_id,
            entry.principal,
            entry.action,
            entry.target,
            entry.outcome,
            entry.request_id,
            entry.address,
            to_json(entry.details),
            milliseconds(entry.at),
        ),
    )


class SqlAudit:
    """`core.store.AuditStore`."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def append(self, *entries: AuditEntry) -> None:
        def add_all(tx: Tx) -> None:
            for entry in entries:
                append(tx, entry)

        await self._writer.run(add_all)

    async def list(self, where: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditEntry]:
        condition, parameters = _condition(where)
        query = f"SELECT seq, {_COLUMNS} FROM audit WHERE seq < ? AND seq >= ?{condition} ORDER BY seq DESC LIMIT ?"  # noqa: S608
        below, lowest = self._range(where, cursor)
        found: Sequence[AuditEntry] = []
        while below > lowest and len(found) <= limit:
            start = max(lowest, below - _WINDOW)
            rows = self._reader.rows(query, (below, start, *parameters, limit + 1 - len(found)))
            found = [*found, *(_entry(row) for row in rows)]
            below = start
            await asyncio.sleep(0)
        if len(found) <= limit:
            return Page(items=found, next_cursor=None)
        return Page(items=found[:limit], next_cursor=str(found[limit - 1].seq))

    def _range(self, where: AuditFilter, cursor: str | None) -> tuple[int, int]:
        """Return the first `seq` that is too new, and the oldest to look at."""
        newest = (self._reader.row("SELECT MAX(seq) FROM audit")[0] or 0) + 1
        oldest = 1
        if where.before is not None:
            row = self._reader.row(
                "SELECT seq FROM audit WHERE at < ? ORDER BY at DESC LIMIT 1", (milliseconds(where.before),)
            )
            newest = min(newest, (row[0] if row is not None else 0) + _SKEW)
        if where.after is not None:
            row = self._reader.row(
                "SELECT seq FROM audit WHERE at >= ? ORDER BY at LIMIT 1", (milliseconds(where.after),)
            )
            oldest = max(oldest, row[0] - _SKEW) if row is not None else newest
        if cursor is not None:
            if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 18:
                raise InvalidRequest("this cursor was not given out by this list", field="cursor")
            newest = min(newest, int(cursor))
        return newest, oldest


def _condition(where: AuditFilter) -> tuple[str, list[Any]]:
    parts: list[tuple[str, Any]] = [
        (column, value)
        for column, value in (
            ("project_id = ?", where.project_id),
            ("principal = ?", where.principal),
            ("action = ?", where.action),
            ("target = ?", where.target),
            ("at >= ?", None if where.after is None else milliseconds(where.after)),
            ("at < ?", None if where.before is None else milliseconds(where.before)),
        )
        if value is not None
    ]
    if where.outcome is not None:
        parts.append(("outcome <> ?", "ok") if where.outcome == "refused" else ("outcome = ?", where.outcome))
    return "".join(f" AND {condition}" for condition, _ in parts), [value for _, value in parts]


def _entry(row: Any) -> AuditEntry:
    return AuditEntry(
        seq=row[0],
        project_id=None if row[1] is None else ProjectId(row[1]),
        principal=row[2],
        action=row[3],
        target=row[4],
        outcome=row[5],
        request_id=row[6],
        address=row[7],
        details=from_json(row[8]),
        at=instant(row[9]),
    )

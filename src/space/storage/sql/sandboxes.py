"""The rows of sandboxes.  Every write raises `version`, so a row read before is known to be current by its version."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from space.core.account import IdempotencyRef
from space.core.errors import InvalidTransition, NotFound
from space.core.event import AuditEntry
from space.core.ids import NodeId, ProjectId, SandboxId
from space.core.lifecycle import Kind, Observation, State, after
from space.core.sandbox import AutoLifecycle, Resources, Sandbox
from space.core.store import Change, Changed, Creation, Fork, Forked, Page, SandboxFilter
from space.storage.sql import admission, audit, events, handover, idempotency, quota, sandbox_list, sandbox_rows
from space.storage.sql.idleness import idle_at
from space.storage.sql.reader import Reader
from space.storage.sql.sandbox_list import PLAIN
from space.storage.sql.values import milliseconds, optional_milliseconds, to_json
from space.storage.sql.writer import Tx, Writer

_VERSION = "SELECT version FROM sandboxes WHERE id = ?"
_MANY = f"SELECT {sandbox_rows.COLUMNS} FROM sandboxes WHERE id IN (SELECT value FROM json_each(?))"  # noqa: S608
_CACHED = 20_000  # rows, about 1.5 KiB each, without those whose creators gave them more than the next line says
_CACHED_BYTES = 4096
_PAGE_BYTES = 8 << 20  # of what creators chose, in the rows that one page reads
_READ_AT_ONCE = 50
_CACHED_PAGES = 256


class SqlSandboxes:
    """`core.store.SandboxStore`."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader
        self._cache: dict[str, Sandbox] = {}  # the newest version that was read; checked against the row each time
        self._pages: dict[Any, Page[Sandbox]] = {}  # of plain lists, good until the next commit
        self._pages_of = -1  # the data version that they show

    async def create(self, creation: Creation) -> Sandbox:
        return await self._writer.run(lambda tx: admission.create(tx, creation))

    async def change(self, change: Change) -> Changed:
        return await self._writer.run(lambda tx: admission.change(tx, change))

    async def fork(self, fork: Fork) -> Forked:
        return await self._writer.run(lambda tx: admission.fork(tx, fork))

    async def quota_left(
        self, project_id: ProjectId, resources: Resources, *, at: datetime, default_max_sandboxes: int | None
    ) -> int:
        return quota.left(self._reader, project_id, resources, default_max_sandboxes, at=at)

    async def find(self, sandbox_id: str) -> Sandbox | None:
        row = self._reader.row(_VERSION, (sandbox_id,))
        if row is None:
            return None
        cached = self._cache.get(sandbox_id)
        if cached is not None and cached.version == row[0]:
            return cached
        row = self._reader.row(sandbox_rows.SELECT, (sandbox_id,))
        return self._remember(row) if row else None

    async def list(
        self, project_id: ProjectId, where: SandboxFilter, *, limit: int, cursor: str | None
    ) -> Page[Sandbox]:
        if where != PLAIN:
            return self._page(project_id, where, limit, cursor)
        key, data_version = (project_id, limit, cursor), self._reader.data_version()
        if data_version != self._pages_of or len(self._pages) >= _CACHED_PAGES:
            self._pages.clear()  # at once: pages of long ago would keep every version of their rows
            self._pages_of = data_version
        known = self._pages.get(key)
        if known is None:
            known = self._pages[key] = self._page(project_id, where, limit, cursor)
        return known

    def _page(self, project_id: ProjectId, where: SandboxFilter, limit: int, cursor: str | None) -> Page[Sandbox]:
        found = self._reader.rows(*sandbox_list.query(project_id, where, limit=limit + 1, cursor=cursor))
        cache = self._cache
        rows: dict[str, Sandbox] = {}
        missing: list[str] = []
        for sandbox_id, version in found[:limit]:
            known = cache.get(sandbox_id)
            if known is not None and known.version == version:
                rows[sandbox_id] = known
            else:
                missing.append(sandbox_id)
        unread = self._read_into(rows, missing)
        shown = [row[0] for row in found[: next((n for n, row in enumerate(found) if row[0] == unread), limit)]]
        items = [rows[sandbox_id] for sandbox_id in shown if sandbox_id in rows]
        is_last = len(shown) == len(found)
        return Page(items=items, next_cursor=None if is_last else sandbox_list.make_cursor(shown[-1], where))

    def _read_into(self, rows: dict[str, Sandbox], missing: Sequence[str]) -> str | None:
        """Read rows until they are large; return the first that was left out."""
        size = 0
        for start in range(0, len(missing), _READ_AT_ONCE):
            if size > _PAGE_BYTES:
                return missing[start]
            for row in self._reader.rows(_MANY, (json.dumps(missing[start : start + _READ_AT_ONCE]),)):
                size += sandbox_rows.size_of(row)
                rows[row[0]] = self._remember(row)
        return None

    async def update(
        self,
        sandbox_id: SandboxId,
        project_id: ProjectId,
        *,
        at: datetime,
        audit: AuditEntry,
        metadata: Mapping[str, str] | None = None,
        auto_lifecycle: AutoLifecycle | None = None,
        extend_seconds: int | None = None,
        idempotency: IdempotencyRef | None = None,
    ) -> Sandbox:
        def job(tx: Tx) -> Sandbox:
            sandbox = _live(tx, sandbox_id, project_id)
            changed = _updated(sandbox, at, metadata, auto_lifecycle, extend_seconds)
            return _save_update(tx, changed, at, audit, idempotency)

        return await self._writer.run(job)

    async def touch(self, used: Mapping[SandboxId, datetime]) -> None:
        if used:
            rows = [(milliseconds(at), sandbox_id) for sandbox_id, at in used.items()]
            await self._writer.run(lambda tx: _touch(tx, rows))

    async def observe_exit(
        self, sandbox_id: SandboxId, generation: int, *, reason: str, at: datetime, data: Mapping[str, Any]
    ) -> bool:
        return await self._writer.run(lambda tx: _observe_exit(tx, sandbox_id, generation, reason, at, data))

    async def desired(self, node_id: NodeId) -> Mapping[SandboxId, tuple[int, State, Kind | None]]:
        rows = self._reader.rows(
            "SELECT id, generation, state, held_kind FROM sandboxes WHERE node_id = ? AND state <> 'deleted'",
            (node_id,),
        )
        return {SandboxId(row[0]): (row[1], State(row[2]), Kind(row[3]) if row[3] else None) for row in rows}

    async def overdue(self, now: datetime, *, limit: int) -> Sequence[tuple[SandboxId, ProjectId, str]]:
        found = []
        for reason, sql in (("expired", _EXPIRED), ("idle", _IDLE)):
            rows = self._reader.rows(sql, (milliseconds(now), limit))
            found += [(SandboxId(row[0]), ProjectId(row[1]), reason) for row in rows]
        return found[:limit]

    async def purge(self, deleted_before: datetime, *, limit: int) -> int:
        gone = await self._writer.run(lambda tx: _purge(tx, milliseconds(deleted_before), limit))
        for sandbox_id in gone:
            self._cache.pop(sandbox_id, None)
        return len(gone)

    def _remember(self, row: Any) -> Sandbox:
        sandbox = sandbox_rows.decode(row)
        if sandbox_rows.size_of(row) > _CACHED_BYTES:
            self._cache.pop(sandbox.id, None)
            return sandbox
        while len(self._cache) >= _CACHED:
            self._cache.pop(next(iter(self._cache)))
        self._cache[sandbox.id] = sandbox
        return sandbox


_EXPIRED = (
    "SELECT id, project_id FROM sandboxes WHERE expires_at <= ? AND state <> 'deleted'"
    " AND (held_kind IS NULL OR held_kind <> 'delete') ORDER BY expires_at LIMIT ?"
)
_IDLE = "SELECT id, project_id FROM sandboxes WHERE idle_at <= ? AND held_kind IS NULL ORDER BY idle_at LIMIT ?"


def _live(tx: Tx, sandbox_id: str, project_id: str) -> Sandbox:
    sandbox = sandbox_rows.select(tx, sandbox_id)
    if sandbox is None or sandbox.project_id != project_id:
        raise NotFound(f"sandbox {sandbox_id} does not exist")
    if sandbox.state is State.DELETED or sandbox.held_kind is Kind.DELETE:
        raise InvalidTransition(
            f"cannot change sandbox {sandbox_id}: it is {sandbox.shown_state}", current_state=sandbox.shown_state
        )
    return sandbox


def _updated(
    sandbox: Sandbox,
    at: datetime,
    metadata: Mapping[str, str] | None,
    auto_lifecycle: AutoLifecycle | None,
    extend_seconds: int | None,
) -> Sandbox:
    expires_at = sandbox.expires_at
    if auto_lifecycle and auto_lifecycle.max_lifetime_seconds != sandbox.auto_lifecycle.max_lifetime_seconds:
        seconds = auto_lifecycle.max_lifetime_seconds
        expires_at = None if seconds is None else sandbox.created_at + timedelta(seconds=seconds)
    if extend_seconds is not None and expires_at is not None:
        expires_at = max(expires_at, at + timedelta(seconds=extend_seconds))
    return replace(
        sandbox,
        version=sandbox.version + 1,
        metadata=sandbox.metadata if metadata is None else metadata,
        auto_lifecycle=auto_lifecycle or sandbox.auto_lifecycle,
        expires_at=expires_at,
        last_active_at=max(at, sandbox.last_active_at),
    )


def _save_update(tx: Tx, sandbox: Sandbox, at: datetime, entry: AuditEntry, ref: IdempotencyRef | None) -> Sandbox:
    tx.execute(
        "UPDATE sandboxes SET version = ?, metadata = ?, idle_seconds = ?, on_idle = ?, max_lifetime_seconds = ?,"
        " wake_on_request = ?, expires_at = ?, last_active_at = ?, idle_at = ? WHERE id = ?",
        (
            sandbox.version,
            to_json(sandbox.metadata),
            sandbox.auto_lifecycle.idle_seconds,
            sandbox.auto_lifecycle.on_idle,
            sandbox.auto_lifecycle.max_lifetime_seconds,
            int(sandbox.auto_lifecycle.wake_on_request),
            optional_milliseconds(sandbox.expires_at),
            milliseconds(sandbox.last_active_at),
            idle_at(sandbox),
            sandbox.id,
        ),
    )
    sandbox_rows.index_metadata(tx, sandbox)
    expires_at = sandbox.expires_at.isoformat() if sandbox.expires_at else None
    events.tell(tx, sandbox, "sandbox.updated", at=at, data={"expires_at": expires_at})
    audit.append(tx, entry)
    idempotency.link(tx, ref, sandbox.id, at=at)
    return sandbox


def _touch(tx: Tx, rows: Sequence[tuple[int, str]]) -> None:
    tx.executemany(
        "UPDATE sandboxes SET last_active_at = ?1, version = version + 1,"
        " idle_at = CASE WHEN idle_at IS NULL THEN NULL ELSE ?1 + idle_seconds * 1000 END"
        " WHERE id = ?2 AND last_active_at < ?1",
        rows,
    )


def _observe_exit(tx: Tx, sandbox_id: str, generation: int, reason: str, at: datetime, data: Mapping[str, Any]) -> bool:
    sandbox = sandbox_rows.select(tx, sandbox_id)
    if sandbox is None or sandbox.generation != generation:
        return False
    state = after(Observation.EXITED, sandbox.state)
    if state is sandbox.state:
        return False
    sandbox = replace(sandbox, state=state, reason=reason, version=sandbox.version + 1)
    sandbox_rows.save(tx, sandbox)
    handover.lose(tx, sandbox.id, generation, reason=reason, at=at)
    events.tell(tx, sandbox, "machine.exited", at=at, data={"reason": reason, "generation": generation, **data})
    return True


def _purge(tx: Tx, before: int, limit: int) -> list[str]:
    rows = tx.execute(
        "DELETE FROM sandboxes WHERE id IN"
        " (SELECT id FROM sandboxes WHERE deleted_at < ? ORDER BY deleted_at LIMIT ?) RETURNING id",
        (before, limit),
    ).fetchall()
    return [row[0] for row in rows]

"""Processes, their sessions and the tokens of sessions."""

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from space.core.command import CommandSpec, Process, ProcessState, Pty, SessionToken
from space.core.errors import AlreadyExists, LimitExceeded, NotFound
from space.core.event import AuditEntry
from space.core.ids import OperationId, ProcessId, ProjectId, SandboxId, SessionId, TokenId
from space.core.lifecycle import Kind, State, require_running
from space.core.ports import SessionStatus
from space.core.store import NewProcess, Page
from space.storage.sql import audit, handover, idempotency
from space.storage.sql.pages import after_id, page_of
from space.storage.sql.reader import Reader
from space.storage.sql.values import from_json, instant, milliseconds, optional_instant, optional_milliseconds, to_json
from space.storage.sql.writer import Tx, Writer

_COLUMNS = (
    "id, session_id, sandbox_id, project_id, generation, spec, state, start_requested_at, os_pid, exit_code, signal,"
    " reason, stdout_bytes, stderr_bytes, created_at, started_at, exited_at"
)
_SPEC = 5  # its column
_PAGE_BYTES = 8 << 20  # of specs in one page: each may have half a megabyte
_INSERT = f"INSERT INTO processes ({_COLUMNS}) VALUES ({', '.join('?' * 17)})"  # noqa: S608 - constants only
_BY_ID = f"SELECT {_COLUMNS} FROM processes WHERE id = ?"  # noqa: S608
_BY_SESSION = f"SELECT {_COLUMNS} FROM processes WHERE session_id = ?"  # noqa: S608
_LIST = (
    f"SELECT {_COLUMNS} FROM processes WHERE sandbox_id = ? AND id > ?"  # noqa: S608
    " AND (exited_at IS NULL OR exited_at >= ?) ORDER BY id LIMIT ?"
)
_UNFINISHED = (
    f"SELECT {_COLUMNS} FROM processes WHERE state IN ('created', 'running')"  # noqa: S608
    " AND (sandbox_id, id) > (?, ?) ORDER BY sandbox_id, id LIMIT ?"
)
_EXPIRED = "SELECT session_id FROM processes WHERE exited_at < ? ORDER BY exited_at LIMIT ?"
_WAITING = (
    "SELECT session_id FROM processes WHERE state IN ('created', 'running') AND state = 'created'"  # for the index
)
_NEVER_STARTED = f"{_WAITING} AND start_requested_at IS NULL AND created_at < ? LIMIT ?"
_NEVER_ARRIVED = f"{_WAITING} AND start_requested_at < ? LIMIT ?"
_INSERT_TOKEN = (
    "INSERT INTO session_tokens (token_hash, session_id, principal, token_id, expires_at) VALUES (?, ?, ?, ?, ?)"
)


class SqlProcesses:
    """`core.store.ProcessStore`."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def create(self, new: NewProcess) -> Process:
        return await self._writer.run(lambda tx: _create(tx, new))

    async def find(self, process_id: str) -> Process | None:
        return _optional(self._reader.row(_BY_ID, (process_id,)))

    async def find_session(self, session_id: str) -> Process | None:
        return _optional(self._reader.row(_BY_SESSION, (session_id,)))

    async def list(
        self, sandbox_id: SandboxId, *, ended_after: datetime, limit: int, cursor: str | None
    ) -> Page[Process]:
        parameters = (sandbox_id, after_id(cursor, "prc"), milliseconds(ended_after), limit + 1)
        rows, is_cut = self._reader.rows_within(_LIST, parameters, max_bytes=_PAGE_BYTES, column=_SPEC)
        found = [_process(row) for row in rows]
        return Page(items=found, next_cursor=found[-1].id) if is_cut else page_of(found, limit)

    async def unfinished(self, *, after: tuple[str, str] = ("", ""), limit: int) -> Sequence[Process]:
        rows, _ = self._reader.rows_within(_UNFINISHED, (*after, limit), max_bytes=_PAGE_BYTES, column=_SPEC)
        return [_process(row) for row in rows]

    async def request_start(self, session_id: SessionId, *, at: datetime) -> tuple[Process, int | None]:
        return await self._writer.run(lambda tx: _request_start(tx, session_id, milliseconds(at)))

    async def end_unstarted(
        self,
        process_id: ProcessId,
        *,
        reason: str,
        at: datetime,
        audit: AuditEntry | None,
        even_if_requested: bool = False,
    ) -> bool:
        return await self._writer.run(lambda tx: _end_unstarted(tx, process_id, reason, at, audit, even_if_requested))

    async def observe(self, *statuses: SessionStatus) -> None:
        await self._writer.run(lambda tx: _observe(tx, statuses))

    async def lose(self, sandbox_id: SandboxId, generation: int, *, reason: str, at: datetime) -> None:
        await self._writer.run(lambda tx: handover.lose(tx, sandbox_id, generation, reason=reason, at=at))

    async def add_token(self, token: SessionToken, audit: AuditEntry | None) -> None:
        await self._writer.run(lambda tx: _add_token(tx, token, audit))

    async def find_token(self, token_hash: bytes) -> SessionToken | None:
        row = self._reader.row(
            "SELECT session_id, token_hash, principal, token_id, expires_at FROM session_tokens WHERE token_hash = ?",
            (token_hash,),
        )
        if row is None:
            return None
        return SessionToken(
            session_id=SessionId(row[0]),
            token_hash=row[1],
            principal=row[2],
            token_id=TokenId(row[3]),
            expires_at=instant(row[4]),
        )

    async def expired(self, ended_before: datetime, *, limit: int) -> Sequence[SessionId]:
        before = milliseconds(ended_before)
        rows = self._reader.rows(_EXPIRED, (before, limit)) or self._reader.rows(_NEVER_STARTED, (before, limit))
        return [SessionId(row[0]) for row in rows]

    async def never_arrived(self, requested_before: datetime, *, limit: int) -> Sequence[SessionId]:
        rows = self._reader.rows(_NEVER_ARRIVED, (milliseconds(requested_before), limit))
        return [SessionId(row[0]) for row in rows]

    async def purge(self, sessions: Sequence[SessionId]) -> None:
        rows = [(session_id,) for session_id in sessions]
        await self._writer.run(lambda tx: tx.executemany("DELETE FROM processes WHERE session_id = ?", rows) and None)


def _create(tx: Tx, new: NewProcess) -> Process:
    process = new.process
    generation = _running_generation(tx, process.sandbox_id, process.project_id)
    (unfinished,) = tx.row(
        "SELECT COUNT(*) FROM processes WHERE sandbox_id = ? AND state IN ('created', 'running')", (process.sandbox_id,)
    )
    if unfinished >= new.max_unfinished:
        raise LimitExceeded(
            f"the sandbox has {unfinished} unfinished processes; end some first",
            quota="processes",
            limit=new.max_unfinished,
        )
    requested = milliseconds(process.created_at) if process.is_start_requested else None
    try:
        tx.execute(_INSERT, _row(process, generation, requested))
    except sqlite3.IntegrityError as error:
        raise AlreadyExists(f"there is a process {process.id}", id=process.id) from error
    if new.token is not None:
        _add_token(tx, new.token, None)
    audit.append(tx, new.audit)
    idempotency.link(tx, new.idempotency, process.id, at=process.created_at)
    return _process(tx.row(_BY_ID, (process.id,)))


def _running_generation(tx: Tx, sandbox_id: str, project_id: str) -> int:
    row = tx.row("SELECT project_id, state, held_by, held_kind, generation FROM sandboxes WHERE id = ?", (sandbox_id,))
    if row is None or row[0] != project_id:
        raise NotFound(f"no sandbox {sandbox_id}", id=sandbox_id)
    held_by = (OperationId(row[2]), Kind(row[3])) if row[2] is not None else None
    require_running(State(row[1]), held_by=held_by)
    return int(row[4])


def _request_start(tx: Tx, session_id: str, at: int) -> tuple[Process, int | None]:
    row = tx.row(_BY_SESSION, (session_id,))
    if row is None:
        raise NotFound(f"no session {session_id}", id=session_id)
    process = _process(row)
    if process.state is not ProcessState.CREATED:
        return process, None
    generation = _running_generation(tx, process.sandbox_id, process.project_id)
    tx.execute(
        "UPDATE processes SET start_requested_at = COALESCE(start_requested_at, ?) WHERE id = ?", (at, process.id)
    )
    return process, generation


def _end_unstarted(
    tx: Tx, process_id: str, reason: str, at: datetime, entry: AuditEntry | None, even_if_requested: bool
) -> bool:
    changed = tx.execute(
        "UPDATE processes SET state = 'exited', reason = ?, exited_at = ?"
        " WHERE id = ? AND state = 'created' AND (start_requested_at IS NULL OR ?)",
        (reason, milliseconds(at), process_id, even_if_requested),
    ).rowcount
    if not changed:
        return False
    if entry is not None:
        audit.append(tx, entry)
    tx.touch(process_id)
    return True


_OBSERVE = """
UPDATE processes SET
    state = :state, os_pid = COALESCE(:os_pid, os_pid), exit_code = :exit_code, signal = :signal, reason = :reason,
    stdout_bytes = :stdout_bytes, stderr_bytes = :stderr_bytes,
    started_at = COALESCE(started_at, :started_at), exited_at = :exited_at
WHERE id = :id AND session_id = :session_id AND (
    state = 'created'
    OR (state = 'running' AND :state IN ('exited', 'lost'))
    OR (state = 'lost' AND :state = 'exited')
)
"""


def _observe(tx: Tx, statuses: Sequence[SessionStatus]) -> None:
    for status in statuses:
        state = status.state
        if state is ProcessState.CREATED:
            continue
        ended_at = status.exited_at
        if ended_at is None and state is ProcessState.LOST:
            ended_at = datetime.now(UTC)  # nobody knows better; the row must not stay for ever
        changed = tx.execute(
            _OBSERVE,
            {
                "id": status.process_id,
                "session_id": status.session_id,
                "state": state,
                "os_pid": status.os_pid,
                "exit_code": status.exit_code,
                "signal": status.signal,
                "reason": status.reason,
                "stdout_bytes": status.stdout_bytes,
                "stderr_bytes": status.stderr_bytes,
                "started_at": optional_milliseconds(status.started_at),
                "exited_at": optional_milliseconds(ended_at),
            },
        ).rowcount
        if changed:
            tx.touch(status.process_id)


def _add_token(tx: Tx, token: SessionToken, entry: AuditEntry | None) -> None:
    try:
        tx.execute(
            _INSERT_TOKEN,
            (token.token_hash, token.session_id, token.principal, token.token_id, milliseconds(token.expires_at)),
        )
    except sqlite3.IntegrityError as error:
        raise NotFound(f"no session {token.session_id}", id=token.session_id) from error
    if entry is not None:
        audit.append(tx, entry)


def _row(process: Process, generation: int, requested: int | None) -> tuple[Any, ...]:
    return (
        process.id,
        process.session_id,
        process.sandbox_id,
        process.project_id,
        generation,
        to_json(_spec_to_json(process.spec)),
        process.state,
        requested,
        process.os_pid,
        process.exit_code,
        process.signal,
        process.reason,
        process.stdout_bytes,
        process.stderr_bytes,
        milliseconds(process.created_at),
        optional_milliseconds(process.started_at),
        optional_milliseconds(process.exited_at),
    )


def _optional(row: Any) -> Process | None:
    return None if row is None else _process(row)


def _process(row: Any) -> Process:
    return Process(
        id=ProcessId(row[0]),
        session_id=SessionId(row[1]),
        sandbox_id=SandboxId(row[2]),
        project_id=ProjectId(row[3]),
        generation=row[4],
        spec=_spec_from_json(from_json(row[5])),
        state=ProcessState(row[6]),
        is_start_requested=row[7] is not None,
        os_pid=row[8],
        exit_code=row[9],
        signal=row[10],
        reason=row[11],
        stdout_bytes=row[12],
        stderr_bytes=row[13],
        created_at=instant(row[14]),
        started_at=optional_instant(row[15]),
        exited_at=optional_instant(row[16]),
    )


def _spec_to_json(spec: CommandSpec) -> dict[str, Any]:
    """What differs from the defaults: the row is written before the process may start."""
    return {
        "argv": spec.argv,
        **({"env": dict(spec.env)} if spec.env else {}),
        **({"cwd": spec.cwd} if spec.cwd is not None else {}),
        **({"user": spec.user} if spec.user is not None else {}),
        **({"stdin": True} if spec.stdin else {}),
        **({"pty": [spec.pty.cols, spec.pty.rows]} if spec.pty is not None else {}),
        **({"timeout_seconds": spec.timeout_seconds} if spec.timeout_seconds else {}),
        **({"start_now": True} if spec.start_now else {}),
    }


def _spec_from_json(value: dict[str, Any]) -> CommandSpec:
    pty = value.pop("pty", None)
    return CommandSpec(
        **(value | {"argv": tuple(value["argv"])}), pty=Pty(cols=pty[0], rows=pty[1]) if pty is not None else None
    )

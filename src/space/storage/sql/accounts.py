"""Users and projects, and the first start; tokens are in `tokens.py`."""

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from space.core.account import IdempotencyRef, Project, Role, Token, TokenKind, User
from space.core.errors import AlreadyExists, FailedPrecondition, NotFound
from space.core.event import AuditEntry
from space.core.ids import ProjectId, TokenId, UserId
from space.core.store import FirstStart, Page, Started, UserChange
from space.storage.sql import audit, idempotency, tokens
from space.storage.sql.pages import after_id, page_of
from space.storage.sql.reader import Reader
from space.storage.sql.values import instant, milliseconds
from space.storage.sql.writer import Tx, Writer

_LOGINS_KEPT_MS = 7 * 24 * 3600 * 1000  # streams opened with a login go on after it has expired, and ask whose it was
_USER = "id, project_id, email, role, is_disabled, created_at"
_QUOTAS = ("max_sandboxes", "max_vcpus", "max_memory_mib", "max_disk_mib", "max_creates_per_minute")
_PROJECT = f"id, name, {', '.join(_QUOTAS)}, created_at"
_PROJECT_BY_ID = f"SELECT {_PROJECT} FROM projects WHERE id = ?"  # noqa: S608 - constants only
_KEY = "SELECT sealed_key FROM projects WHERE id = ?"
_USER_BY_ID = f"SELECT {_USER} FROM users WHERE id = ?"  # noqa: S608


class SqlAccounts:
    """`core.store.AccountStore`."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def start(self, first: FirstStart) -> Started:
        return await self._writer.run(lambda tx: _start(tx, first))

    # Users

    async def add_user(
        self, user: User, password_hash: str, audit: AuditEntry, *, idempotency: IdempotencyRef | None = None
    ) -> None:
        await self._writer.run(lambda tx: _add_user(tx, user, password_hash, audit, idempotency))

    async def find_user(self, user_id: str) -> User | None:
        row = self._reader.row(_USER_BY_ID, (user_id,))
        return None if row is None else _user(row)

    async def find_login(self, email: str) -> tuple[User, str] | None:
        row = self._reader.row(f"SELECT {_USER}, password_hash FROM users WHERE email = ?", (email,))  # noqa: S608
        return None if row is None else (_user(row), row[6])

    async def list_users(self, *, limit: int, cursor: str | None) -> Page[User]:
        rows = self._reader.rows(
            f"SELECT {_USER} FROM users WHERE id > ? ORDER BY id LIMIT ?",  # noqa: S608
            (after_id(cursor, "usr"), limit + 1),
        )
        return page_of([_user(row) for row in rows], limit)

    async def change_user(
        self,
        user_id: str,
        change: UserChange,
        *,
        at: datetime,
        audit: AuditEntry,
        idempotency: IdempotencyRef | None = None,
    ) -> tuple[User, Sequence[TokenId]]:
        return await self._writer.run(lambda tx: _change_user(tx, user_id, change, at, audit, idempotency))

    # Tokens

    async def add_login(self, token: Token, token_hash: bytes, password_hash: str, audit: AuditEntry) -> None:
        await self._writer.run(lambda tx: tokens.add_login(tx, token, token_hash, password_hash, audit))

    async def add_token(
        self, token: Token, token_hash: bytes, *, maker: TokenId, audit: AuditEntry, idempotency: IdempotencyRef | None
    ) -> None:
        await self._writer.run(lambda tx: tokens.add(tx, token, token_hash, maker, audit, idempotency))

    async def find_token(self, token_id: str) -> Token | None:
        return tokens.find(self._reader, token_id)

    async def find_secret(self, token_hash: bytes) -> Token | None:
        return tokens.find_secret(self._reader, token_hash)

    async def list_tokens(
        self, *, user_id: str | None, maker: str | None, limit: int, cursor: str | None
    ) -> Page[Token]:
        found = tokens.list_all(
            self._reader, user_id=user_id, maker=maker, after=after_id(cursor, "tok"), limit=limit + 1
        )
        return page_of(found, limit)

    async def revoke_token(self, token_id: TokenId, *, at: datetime, audit: AuditEntry) -> bool:
        return await self._writer.run(lambda tx: tokens.revoke(tx, token_id, at, audit))

    async def used(self, tokens: Mapping[TokenId, datetime]) -> None:
        rows = [(milliseconds(at), token_id) for token_id, at in tokens.items()]
        await self._writer.run(
            lambda tx: (
                tx.executemany("UPDATE tokens SET last_used_at = MAX(COALESCE(last_used_at, 0), ?) WHERE id = ?", rows)
                and None
            )
        )

    # Projects

    async def add_project(
        self, project: Project, audit: AuditEntry, *, idempotency: IdempotencyRef | None = None
    ) -> None:
        await self._writer.run(lambda tx: _add_project(tx, project, audit, idempotency))

    async def find_project(self, project_id: str) -> Project | None:
        row = self._reader.row(_PROJECT_BY_ID, (project_id,))
        return None if row is None else _project(row)

    async def project_key(self, project_id: ProjectId, *, otherwise: bytes | None = None) -> bytes | None:
        row = self._reader.row(_KEY, (project_id,))
        if row is None or (row[0] is None and otherwise is not None):
            return await self._writer.run(lambda tx: _project_key(tx, project_id, otherwise))
        key: bytes | None = row[0]
        return key

    async def list_projects(self, *, limit: int, cursor: str | None) -> Page[Project]:
        rows = self._reader.rows(
            f"SELECT {_PROJECT} FROM projects WHERE id > ? ORDER BY id LIMIT ?",  # noqa: S608
            (after_id(cursor, "prj"), limit + 1),
        )
        return page_of([_project(row) for row in rows], limit)

    async def change_project(self, project_id: str, changes: Mapping[str, Any], audit: AuditEntry) -> Project:
        return await self._writer.run(lambda tx: _change_project(tx, project_id, changes, audit))

    async def purge(self, now: datetime) -> None:
        await self._writer.run(lambda tx: _purge(tx, milliseconds(now)))


def _start(tx: Tx, first: FirstStart) -> Started:
    row = tx.row(f"SELECT {_PROJECT} FROM projects ORDER BY id LIMIT 1")  # noqa: S608
    project = first.project if row is None else _project(row)
    if row is None:
        _insert_project(tx, project)
    admin = tx.row("SELECT email FROM users WHERE role = 'admin' AND is_disabled = 0 ORDER BY id LIMIT 1")
    if admin is None:
        _insert_user(tx, first.admin, project.id, first.admin_password_hash)
    makes_token = first.cli_token is not None and first.cli_token_hash is not None
    if first.cli_token is not None and first.cli_token_hash is not None:
        tokens.revoke_named(tx, first.cli_token.name, first.cli_token.created_by, first.cli_token.created_at)
        tokens.insert(tx, first.cli_token, first.cli_token_hash, project.id)
    if row is None or admin is None or makes_token:
        audit.append(tx, first.audit)
    return Started(
        project=project,
        admin_email=first.admin.email if admin is None else admin[0],
        made_admin=admin is None,
        made_cli_token=makes_token,
    )


def _add_user(tx: Tx, user: User, password_hash: str, entry: AuditEntry, ref: IdempotencyRef | None) -> None:
    try:
        _insert_user(tx, user, user.project_id, password_hash)
    except sqlite3.IntegrityError as error:
        if tx.row("SELECT 1 FROM users WHERE email = ?", (user.email,)) is None:
            raise NotFound(f"no project {user.project_id}", id=user.project_id) from error
        raise AlreadyExists(f"there is a user {user.email}", field="email") from error
    audit.append(tx, entry)
    idempotency.link(tx, ref, user.id, at=user.created_at)


def _change_user(
    tx: Tx, user_id: str, change: UserChange, at: datetime, entry: AuditEntry, ref: IdempotencyRef | None
) -> tuple[User, Sequence[TokenId]]:
    row = tx.row(_USER_BY_ID, (user_id,))
    if row is None:
        raise NotFound(f"no user {user_id}", id=user_id)
    before = _user(row)
    role = change.role if change.role is not None else before.role
    is_disabled = change.is_disabled if change.is_disabled is not None else before.is_disabled
    if before.role is Role.ADMIN and not before.is_disabled and (role is not Role.ADMIN or is_disabled):
        (others,) = tx.row(
            "SELECT COUNT(*) FROM users WHERE role = 'admin' AND is_disabled = 0 AND id <> ?", (user_id,)
        )
        if not others:
            raise FailedPrecondition("this is the last admin; make another one first", id=user_id)
    tx.execute("UPDATE users SET role = ?, is_disabled = ? WHERE id = ?", (role, int(is_disabled), user_id))
    if change.password_hash is not None:
        tx.execute("UPDATE users SET password_hash = ? WHERE id = ?", (change.password_hash, user_id))
    ended: list[TokenId] = []
    if is_disabled:
        ended = tokens.revoke_of_user(tx, user_id, at)
    elif role is not before.role or change.password_hash is not None:
        ended = tokens.revoke_of_user(tx, user_id, at, kind=TokenKind.LOGIN)
        ended += tokens.revoke_beyond(tx, user_id, role.scopes, at)
    audit.append(tx, entry)
    idempotency.link(tx, ref, user_id, at=at)
    return _user(tx.row(_USER_BY_ID, (user_id,))), ended


def _insert_user(tx: Tx, user: User, project_id: str, password_hash: str) -> None:
    tx.execute(
        "INSERT INTO users (id, project_id, email, role, password_hash, is_disabled, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            user.id,
            project_id,
            user.email,
            user.role,
            password_hash,
            int(user.is_disabled),
            milliseconds(user.created_at),
        ),
    )


def _add_project(tx: Tx, project: Project, entry: AuditEntry, ref: IdempotencyRef | None) -> None:
    try:
        _insert_project(tx, project)
    except sqlite3.IntegrityError as error:
        raise AlreadyExists(f"there is a project named {project.name}", field="name") from error
    audit.append(tx, entry)
    idempotency.link(tx, ref, project.id, at=project.created_at)


def _insert_project(tx: Tx, project: Project) -> None:
    tx.execute(
        f"INSERT INTO projects ({_PROJECT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (
            project.id,
            project.name,
            *(getattr(project, quota) for quota in _QUOTAS),
            milliseconds(project.created_at),
        ),
    )


def _change_project(tx: Tx, project_id: str, changes: Mapping[str, Any], entry: AuditEntry) -> Project:
    for field, value in changes.items():
        if field != "name" and field not in _QUOTAS:
            raise ValueError(f"a project has no field {field}")
        try:
            tx.execute(f"UPDATE projects SET {field} = ? WHERE id = ?", (value, project_id))  # noqa: S608 - checked above
        except sqlite3.IntegrityError as error:
            raise AlreadyExists(f"there is a project named {value}", field="name") from error
    row = tx.row(_PROJECT_BY_ID, (project_id,))
    if row is None:
        raise NotFound(f"no project {project_id}", id=project_id)
    audit.append(tx, entry)
    return _project(row)


def _project_key(tx: Tx, project_id: str, otherwise: bytes | None) -> bytes | None:
    tx.execute("UPDATE projects SET sealed_key = COALESCE(sealed_key, ?) WHERE id = ?", (otherwise, project_id))
    row = tx.row(_KEY, (project_id,))
    if row is None:
        raise NotFound(f"no project {project_id}", id=project_id)
    key: bytes | None = row[0]
    return key


def _purge(tx: Tx, now: int) -> None:
    tx.execute("DELETE FROM session_tokens WHERE expires_at <= ?", (now,))
    tx.execute("DELETE FROM tokens WHERE kind = 'login' AND expires_at <= ?", (now - _LOGINS_KEPT_MS,))


def _user(row: Any) -> User:
    return User(
        id=UserId(row[0]),
        project_id=ProjectId(row[1]),
        email=row[2],
        role=Role(row[3]),
        is_disabled=bool(row[4]),
        created_at=instant(row[5]),
    )


def _project(row: Any) -> Project:
    return Project(
        id=ProjectId(row[0]),
        name=row[1],
        max_sandboxes=row[2],
        max_vcpus=row[3],
        max_memory_mib=row[4],
        max_disk_mib=row[5],
        max_creates_per_minute=row[6],
        created_at=instant(row[7]),
    )

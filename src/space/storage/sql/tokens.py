"""The rows of tokens, logins included, as functions within the transactions of accounts."""

import json
import sqlite3
from collections.abc import Set
from datetime import datetime
from typing import Any

from space.core.account import IdempotencyRef, Role, Scope, Token, TokenKind
from space.core.errors import NotFound, Unauthenticated
from space.core.event import AuditEntry
from space.core.ids import ProjectId, TokenId, UserId
from space.storage.sql import audit, idempotency
from space.storage.sql.reader import Reader
from space.storage.sql.values import instant, milliseconds, optional_instant, optional_milliseconds
from space.storage.sql.writer import Tx

_TOKEN = (
    "id, kind, name, prefix, project_id, user_id, scopes, templates, created_by, created_at, expires_at, revoked_at,"
    " last_used_at"
)
_BY_ID = f"SELECT {_TOKEN} FROM tokens WHERE id = ?"  # noqa: S608 - constants only
_BY_SECRET = (
    f"SELECT {_TOKEN} FROM tokens WHERE secret_hash = ?"  # noqa: S608
    " AND NOT EXISTS (SELECT 1 FROM users WHERE users.id = tokens.user_id AND is_disabled = 1)"
)


def find(reader: Reader, token_id: str) -> Token | None:
    """Return any token by id."""
    row = reader.row(_BY_ID, (token_id,))
    return None if row is None else _token(row)


def find_secret(reader: Reader, token_hash: bytes) -> Token | None:
    """Return the token with this secret, unless its user is disabled."""
    row = reader.row(_BY_SECRET, (token_hash,))
    return None if row is None else _token(row)


def list_all(reader: Reader, *, user_id: str | None, maker: str | None, after: str, limit: int) -> list[Token]:
    """Return tokens that are no logins, in the order of ids."""
    where, parameters = "kind <> 'login' AND id > ?", [after]
    if user_id is not None:
        where += " AND user_id = ?"
        parameters.append(user_id)
    if maker is not None:
        where += " AND created_by = ?"
        parameters.append(maker)
    rows = reader.rows(f"SELECT {_TOKEN} FROM tokens WHERE {where} ORDER BY id LIMIT ?", (*parameters, limit))  # noqa: S608
    return [_token(row) for row in rows]


def insert(tx: Tx, token: Token, token_hash: bytes, project_id: str) -> None:
    """Add a row; `project_id` is where it belongs, whatever the token says."""
    tx.execute(
        f"INSERT INTO tokens ({_TOKEN}, secret_hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (
            token.id,
            token.kind,
            token.name,
            token.prefix,
            project_id,
            token.user_id,
            json.dumps(sorted(token.scopes)),
            None if token.templates is None else json.dumps(sorted(token.templates)),
            token.created_by,
            milliseconds(token.created_at),
            optional_milliseconds(token.expires_at),
            optional_milliseconds(token.revoked_at),
            optional_milliseconds(token.last_used_at),
            token_hash,
        ),
    )


def add(tx: Tx, token: Token, token_hash: bytes, maker: TokenId, entry: AuditEntry, ref: IdempotencyRef | None) -> None:
    """Add a token that was asked for with another one, which must still be good."""
    row = tx.row("SELECT revoked_at FROM tokens WHERE id = ?", (maker,))
    if row is None or row[0] is not None:
        raise Unauthenticated("the token that asks was revoked")
    try:
        insert(tx, token, token_hash, token.project_id)
    except sqlite3.IntegrityError as error:
        raise NotFound(f"no project {token.project_id}", id=token.project_id, field="project") from error
    audit.append(tx, entry)
    idempotency.link(tx, ref, token.id, at=token.created_at)


def add_login(tx: Tx, token: Token, token_hash: bytes, password_hash: str, entry: AuditEntry) -> None:
    """Add a login, unless what was checked against no longer holds."""
    row = tx.row("SELECT is_disabled, password_hash, role FROM users WHERE id = ?", (token.user_id,))
    if row is None or row[0] or row[1] != password_hash or not token.scopes <= Role(row[2]).scopes:
        raise Unauthenticated("wrong email or password")
    insert(tx, token, token_hash, token.project_id)
    audit.append(tx, entry)


def revoke(tx: Tx, token_id: TokenId, at: datetime, entry: AuditEntry) -> bool:
    """End a token; false if it had ended, or is unknown."""
    changed = tx.execute(
        "UPDATE tokens SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", (milliseconds(at), token_id)
    ).rowcount
    if changed:
        audit.append(tx, entry)
    return bool(changed)


def revoke_of_user(tx: Tx, user_id: str, at: datetime, *, kind: TokenKind | None = None) -> list[TokenId]:
    """End all of a user's tokens, or those of one kind."""
    rows = tx.execute(
        "UPDATE tokens SET revoked_at = ? WHERE user_id = ? AND revoked_at IS NULL AND (? IS NULL OR kind = ?)"
        " RETURNING id",
        (milliseconds(at), user_id, kind, kind),
    ).fetchall()
    return [TokenId(row[0]) for row in rows]


def revoke_beyond(tx: Tx, user_id: str, allowed: Set[Scope], at: datetime) -> list[TokenId]:
    """End the user's tokens that hold a scope which the user may no longer give."""
    rows = tx.execute("SELECT id, scopes FROM tokens WHERE user_id = ? AND revoked_at IS NULL", (user_id,)).fetchall()
    ended = [TokenId(row[0]) for row in rows if not set(json.loads(row[1])) <= allowed]
    tx.executemany(
        "UPDATE tokens SET revoked_at = ? WHERE id = ?", [(milliseconds(at), token_id) for token_id in ended]
    )
    return ended


def revoke_named(tx: Tx, name: str, created_by: str, at: datetime) -> None:
    """End earlier tokens of this name and maker."""
    tx.execute(
        "UPDATE tokens SET revoked_at = ? WHERE created_by = ? AND name = ? AND revoked_at IS NULL",
        (milliseconds(at), created_by, name),
    )


def _token(row: Any) -> Token:
    return Token(
        id=TokenId(row[0]),
        kind=TokenKind(row[1]),
        name=row[2],
        prefix=row[3],
        project_id=ProjectId(row[4]),
        user_id=None if row[5] is None else UserId(row[5]),
        scopes=frozenset(Scope(scope) for scope in json.loads(row[6])),
        templates=None if row[7] is None else frozenset(json.loads(row[7])),
        created_by=row[8],
        created_at=instant(row[9]),
        expires_at=optional_instant(row[10]),
        revoked_at=optional_instant(row[11]),
        last_used_at=optional_instant(row[12]),
    )

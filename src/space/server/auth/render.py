"""Accounts as the wire shows them.  No secret passes here but the one that was just made."""

from typing import Any

from space.core.account import Token, User


def user(row: User) -> dict[str, Any]:
    """Show a user."""
    return {
        "id": row.id,
        "email": row.email,
        "role": row.role,
        "disabled": row.is_disabled,
        "created_at": row.created_at,
    }


def login_user(row: User) -> dict[str, Any]:
    """Show who logged in."""
    return {"id": row.id, "email": row.email, "role": row.role}


def token(row: Token) -> dict[str, Any]:
    """Show a token, without its secret."""
    return {
        "id": row.id,
        "name": row.name,
        "kind": row.kind,
        "prefix": row.prefix,
        "project": row.project_id,
        "user_id": row.user_id,
        "scopes": sorted(row.scopes),
        "templates": sorted(row.templates) if row.templates is not None else None,
        "created_by": row.created_by,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "revoked_at": row.revoked_at,
        "last_used_at": row.last_used_at,
    }

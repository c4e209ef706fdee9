"""What the store does with users, projects and tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from space.core.account import IdempotencyRef, Project, Role, Token, User
from space.core.event import AuditEntry
from space.core.ids import ProjectId, TokenId
from space.core.store.pages import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStart:
    """What must exist before anybody can call; each part is recorded only if there is none yet."""

    project: Project
    admin: User
    admin_password_hash: str
    cli_token: Token | None  #: None: the one that exists stays
    cli_token_hash: bytes | None
    audit: AuditEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What was there, or has been made."""

    project: Project
    admin_email: str
    made_admin: bool
    made_cli_token: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UserChange:
    """A change to a user; None leaves a field as it is."""

    role: Role | None = None
    is_disabled: bool | None = None
    password_hash: str | None = None


class AccountStore(Protocol):
    """Users, projects and tokens."""

    async def start(self, first: FirstStart) -> Started: ...

    async def add_user(
        self, user: User, password_hash: str, audit: AuditEntry, *, idempotency: IdempotencyRef | None = None
    ) -> None:
        """Raises `AlreadyExists` if the address is taken, `NotFound` for an unknown project."""
        ...

    async def find_user(self, user_id: str) -> User | None: ...

    async def find_login(self, email: str) -> tuple[User, str] | None:
        """Return a user with the hash of the password."""
        ...

    async def list_users(self, *, limit: int, cursor: str | None) -> Page[User]: ...

    async def change_user(
        self,
        user_id: str,
        change: UserChange,
        *,
        at: datetime,
        audit: AuditEntry,
        idempotency: IdempotencyRef | None = None,
    ) -> tuple[User, Sequence[TokenId]]:
        """Change a user and revoke what that takes away; returns the tokens that ended.

        Disabling ends all of the user's tokens; a new role or password ends the logins, and a lesser role the
        tokens that hold more.

        Raises:
            NotFound: no such user.
            FailedPrecondition: no admin would be left.
        """
        ...

    async def add_login(self, token: Token, token_hash: bytes, password_hash: str, audit: AuditEntry) -> None:
        """Record a login unless the user lost it meanwhile (`Unauthenticated`): disabled, demoted, another password."""
        ...

    async def add_token(
        self, token: Token, token_hash: bytes, *, maker: TokenId, audit: AuditEntry, idempotency: IdempotencyRef | None
    ) -> None:
        """Record a token unless `maker`, the token it was asked for with, has ended meanwhile (`Unauthenticated`).

        Raises `NotFound` for an unknown project.
        """
        ...

    async def find_token(self, token_id: str) -> Token | None: ...

    async def find_secret(self, token_hash: bytes) -> Token | None:
        """Return the token, whether or not it is still good; None also if its user is disabled."""
        ...

    async def list_tokens(
        self, *, user_id: str | None, maker: str | None, limit: int, cursor: str | None
    ) -> Page[Token]:
        """Page all but logins in the order of ids; of one user, or made by one principal, where given."""
        ...

    async def revoke_token(self, token_id: TokenId, *, at: datetime, audit: AuditEntry) -> bool: ...

    async def used(self, tokens: Mapping[TokenId, datetime]) -> None:
        """Raise `last_used_at`, never lower it."""
        ...

    async def add_project(
        self, project: Project, audit: AuditEntry, *, idempotency: IdempotencyRef | None = None
    ) -> None:
        """Raises `AlreadyExists` if the name is taken."""
        ...

    async def find_project(self, project_id: str) -> Project | None: ...

    async def project_key(self, project_id: ProjectId, *, otherwise: bytes | None = None) -> bytes | None:
        """Return the project's sealed key; if it has none, `otherwise` becomes it.  Raises `NotFound`."""
        ...

    async def list_projects(self, *, limit: int, cursor: str | None) -> Page[Project]: ...

    async def change_project(self, project_id: str, changes: Mapping[str, Any], audit: AuditEntry) -> Project:
        """Change the given fields of `Project`.  Raises `NotFound`, `AlreadyExists`."""
        ...

    async def purge(self, now: datetime) -> None:
        """Forget session tokens and logins that have expired."""
        ...

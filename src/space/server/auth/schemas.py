"""Logins, tokens and users on the wire."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, model_validator

from space.core.account import READ_ONLY, Role, Scope, TokenKind
from space.server.schemas import NO_NUL, Asked, Query, Shown
from space.server.v1.schemas.sandboxes import TemplateReference
from space.server.v1.schemas.shared import Cursor, Limit

Email = Annotated[str, Field(min_length=3, max_length=254, pattern=r"^[^\x00-\x20@]+@[^\x00-\x20@]+$")]
Password = Annotated[str, Field(min_length=12, max_length=1024, pattern=NO_NUL, description="At least 12 characters.")]
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
RoleName = Literal["admin", "member", "viewer"]


class Login(Asked):
    """A password for a session."""

    email: Annotated[str, Field(min_length=1, max_length=254, pattern=NO_NUL)]
    password: Annotated[str, Field(min_length=1, max_length=1024, pattern=NO_NUL)]


class LoginUser(Shown):
    """Who logged in."""

    id: str
    email: str
    role: RoleName


class LoginCreated(Shown):
    """A session; the token is shown once."""

    token: str
    expires_at: datetime
    user: LoginUser


class LoginShown(Shown):
    """The session that asks."""

    id: str
    expires_at: datetime | None
    created_at: datetime
    user: LoginUser


class TokenCreate(Asked):
    """Asks for a token."""

    name: Name
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=32)] | None = None
    preset: Annotated[Literal["read-only"], Field(description="Instead of `scopes`.")] | None = None
    kind: Annotated[Literal["service", "e2b"], Field(description="`e2b` has the form that E2B's SDK expects.")] = (
        "service"
    )
    expires_at: AwareDatetime | None = None
    project: Annotated[str, Field(pattern=r"^prj[0-9a-v]{25}[048cgkos]$")] | None = None
    templates: (
        Annotated[
            list[TemplateReference],
            Field(min_length=1, max_length=64, description="The only templates that it may create from; default: all."),
        ]
        | None
    ) = None

    @model_validator(mode="after")
    def _has_scopes(self) -> "TokenCreate":
        if (self.scopes is None) == (self.preset is None):
            raise ValueError("give either scopes or preset")
        return self

    @property
    def rights(self) -> frozenset[Scope]:
        return READ_ONLY if self.scopes is None else frozenset(self.scopes)

    @property
    def token_kind(self) -> TokenKind:
        return TokenKind(self.kind)


class Token(Shown):
    """A token without its secret."""

    id: str
    name: str
    kind: Literal["login", "service", "e2b"]
    prefix: str = Field(description="The first characters of the secret, to recognise it by.")
    project: str
    user_id: str | None
    scopes: list[Scope]
    templates: list[str] | None
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class TokenCreated(Token):
    """A new token; this is the only time that its secret is shown."""

    token: str


class TokenPage(Shown):
    """A page of tokens."""

    items: list[Token]
    next_cursor: str | None


class PageQuery(Query):
    """Chooses a page."""

    limit: Limit = 100
    cursor: Cursor = None


class UserCreate(Asked):
    """Asks for a user."""

    email: Email
    role: Role = Role.MEMBER
    password: Password | None = Field(default=None, description="Default: one is made up and answered once.")


class UserUpdate(Asked):
    """Changes a user; what is left out stays."""

    role: Role | None = None
    disabled: bool | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> "UserUpdate":
        if self.role is None and self.disabled is None:
            raise ValueError("give role or disabled")
        return self


class PasswordReset(Asked):
    """Sets a password."""

    password: Password | None = Field(default=None, description="Default: one is made up and answered once.")


class User(Shown):
    """A person."""

    id: str
    email: str
    role: RoleName
    disabled: bool
    created_at: datetime


class UserWithPassword(User):
    """A person, and the password that was made up for them, once."""

    password: str | None


class UserPage(Shown):
    """A page of users."""

    items: list[User]
    next_cursor: str | None

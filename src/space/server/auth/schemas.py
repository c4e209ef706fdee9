"""Logins, tokens and users on the wire."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from space.core.account import READ_ONLY, Role, Scope, TokenKind
from space.server.schemas import NO_NUL, Asked, Instant, Query, Shown, at_least_one, exactly_one
from space.server.v1.schemas.sandboxes import TemplateReference
from space.server.v1.schemas.shared import Cursor, Limit

Email = Annotated[str, Field(min_length=3, max_length=254, pattern=r"^[!-?A-~]+@[!-?A-~]+$")]
Password = Annotated[str, Field(min_length=12, max_length=1024, pattern=NO_NUL, description="At least 12 characters.")]
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
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

    model_config = exactly_one("scopes", "preset")

    name: Name
    scopes: Annotated[list[Scope], Field(default_factory=list, min_length=1, max_length=32)]
    preset: Annotated[
        Literal["read-only"], Field(default_factory=lambda: "read-only", description="Instead of `scopes`.")
    ]
    kind: Annotated[Literal["service", "e2b"], Field(description="`e2b` has the form that E2B's SDK expects.")] = (
        "service"
    )
    expires_at: Instant | None = None
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
        if ("scopes" in self.model_fields_set) == ("preset" in self.model_fields_set):
            raise ValueError("give either scopes or preset")
        return self

    @property
    def rights(self) -> frozenset[Scope]:
        return frozenset(self.scopes) if "scopes" in self.model_fields_set else READ_ONLY

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

    model_config = at_least_one("role", "disabled")

    role: Annotated[Role, Field(default_factory=lambda: Role.MEMBER)]
    disabled: Annotated[bool, Field(default_factory=bool)]

    @model_validator(mode="after")
    def _changes_something(self) -> "UserUpdate":
        if not self.model_fields_set:
            raise ValueError("give role or disabled")
        return self

    @property
    def new_role(self) -> Role | None:
        """What replaces the role; None leaves it."""
        return self.role if "role" in self.model_fields_set else None

    @property
    def is_disabled(self) -> bool | None:
        """Whether they shall be disabled; None leaves it."""
        return self.disabled if "disabled" in self.model_fields_set else None


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

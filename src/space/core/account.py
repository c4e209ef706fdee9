"""Who may call: users, tokens, projects, and the principal that a request acts as."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from space.core.errors import PermissionDenied
from space.core.ids import ProjectId, TokenId, UserId


class Scope(StrEnum):
    """A right that a token can carry."""

    SANDBOXES_READ = "sandboxes:read"
    SANDBOXES_WRITE = "sandboxes:write"
    COMMANDS_RUN = "commands:run"
    FILES_READ = "files:read"
    FILES_WRITE = "files:write"
    TEMPLATES_READ = "templates:read"
    TEMPLATES_WRITE = "templates:write"
    NETWORK_WRITE = "network:write"
    CREDENTIALS_USE = "credentials:use"
    CREDENTIALS_WRITE = "credentials:write"
    PORTS_ACCESS = "ports:access"
    AUDIT_READ = "audit:read"
    ADMIN = "admin"


READ_ONLY = frozenset({Scope.SANDBOXES_READ, Scope.FILES_READ, Scope.TEMPLATES_READ})
ALL_SCOPES = frozenset(Scope)


class Role(StrEnum):
    """What a user may do; each role is a set of scopes."""

    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"

    @property
    def scopes(self) -> frozenset[Scope]:
        match self:
            case Role.ADMIN:
                return ALL_SCOPES
            case Role.MEMBER:
                return ALL_SCOPES - {Scope.ADMIN, Scope.AUDIT_READ, Scope.CREDENTIALS_WRITE}
            case Role.VIEWER:
                return READ_ONLY


class TokenKind(StrEnum):
    """What a token is for; its secret's shape follows."""

    LOGIN = "login"  #: a user's session
    SERVICE = "service"
    E2B = "e2b"  #: `e2b_` and 40 hex digits


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A person.  The password's hash never leaves storage."""

    id: UserId
    project_id: ProjectId  #: where this user's logins work
    email: str
    role: Role
    is_disabled: bool
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Owns sandboxes and quotas; None is no limit."""

    id: ProjectId
    name: str
    max_sandboxes: int | None = None
    max_vcpus: int | None = None
    max_memory_mib: int | None = None
    max_disk_mib: int | None = None
    max_creates_per_minute: int | None = None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """An opaque 256-bit secret, stored as its SHA-256; `prefix` is its first characters, for people."""

    id: TokenId
    kind: TokenKind
    name: str
    prefix: str
    project_id: ProjectId
    user_id: UserId | None
    scopes: frozenset[Scope]
    templates: frozenset[str] | None  #: templates that it may create from; None: all
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who a request acts as."""

    id: str  #: `usr…` for a login, `tok…` for a token
    token_id: TokenId
    project_id: ProjectId
    scopes: frozenset[Scope]
    templates: frozenset[str] | None = None

    def require(self, scope: Scope) -> None:
        """Raise `PermissionDenied` unless this caller holds `scope` or `admin`."""
        if scope not in self.scopes and Scope.ADMIN not in self.scopes:
            raise PermissionDenied(f"this needs the scope {scope}; ask for a token that has it", scope=str(scope))


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, as far as the control plane needs to know it: who, and what the audit log says."""

    principal: Principal
    action: str  #: the operationId of the route
    request_id: str
    address: str | None = None
    idempotency: "IdempotencyRef | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyRef:
    """A reserved idempotency key: what the change's own transaction links its result to."""

    principal_id: str
    key: str
    method_path: str
    request_hash: bytes

"""Users: the first start, signing in and out, and what admins do with accounts."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from space.control.attempts import Attempts
from space.control.audit import entry_for
from space.control.identity import new_id
from space.control.passwords import Passwords, check_password
from space.control.secret import digest, is_token, make_password, make_token, shown_prefix
from space.control.tokens import Tokens
from space.core.account import ALL_SCOPES, Call, Principal, Project, Role, Scope, Token, TokenKind, User
from space.core.errors import FailedPrecondition, InvalidRequest, NotFound, Unauthenticated, Unavailable
from space.core.event import AuditEntry
from space.core.ids import ProjectId, TokenId, UserId
from space.core.ports import Clock
from space.core.store import FirstStart, Page, Store, UserChange

ADMIN_EMAIL = "admin@localhost"
CLI_TOKEN_NAME = "local-cli"
BOOTSTRAP = "bootstrap"  #: principal of what the first start makes
MAX_EMAIL = 254
_WRONG = "wrong email or password"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """What a start found or made.  The secrets are there only when they are new, and only this once."""

    project: Project
    admin_email: str
    admin_password: str | None = field(repr=False)
    cli_token: str | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user's session, with its secret."""

    secret: str = field(repr=False)
    expires_at: datetime
    user: User


class Accounts:
    """Passwords are checked with the same work whether or not the account exists."""

    def __init__(
        self,
        store: Store,
        tokens: Tokens,
        clock: Clock,
        *,
        login_hours: float = 12,
        passwords: Passwords | None = None,
        attempts: Attempts | None = None,
    ) -> None:
        self._store = store
        self._tokens = tokens
        self._clock = clock
        self._login_life = timedelta(hours=login_hours)
        self._passwords = passwords or Passwords()
        self._attempts = attempts or Attempts(clock)

    async def bootstrap(self, *, cli_secret: str | None) -> Bootstrap:
        """Make the default project, an admin and the local CLI's token where they are missing; call at every start.

        `cli_secret` is what the CLI's file holds, if it exists.  Unless it is good, a new token replaces the earlier
        ones, and the caller writes it to that file.  A crash before the file is written is repaired by the next
        start.  A password that was never seen is replaced with the CLI's token, by `reset_password`.
        """
        known = await self._store.accounts.find_login(ADMIN_EMAIL)
        password = make_password()
        hashed = await self._passwords.hash(password) if known is None else ""
        secret = None if await self._is_good_cli_secret(cli_secret) else make_token(TokenKind.SERVICE)
        first = self._first_start(hashed, secret)
        started = await self._store.accounts.start(first)
        if started.made_cli_token:
            self._tokens.forget()
        return Bootstrap(
            project=started.project,
            admin_email=started.admin_email,
            admin_password=password if started.made_admin else None,
            cli_token=secret if started.made_cli_token else None,
        )

    async def login(self, email: str, password: str, *, address: str | None, request_id: str) -> Login:
        """Sign in.

        Raises:
            Unauthenticated: unknown, disabled or wrong: the same answer after the same work.
            LimitExceeded: too many failures from this address or for this account.
        """
        email = email[: 2 * MAX_EMAIL].strip().casefold().encode(errors="replace").decode()[: MAX_EMAIL + 1]
        attempt = self._attempts.begin(address=address, account=email)
        found = await self._store.accounts.find_login(email)
        try:
            is_right = await self._passwords.verify(password, found[1] if found is not None else None)
        except Unavailable:
            attempt.take_back()  # nothing was tried
            raise
        now = self._clock.now()
        if found is None or not is_right or found[0].is_disabled:
            await self._store.audit.append(_of_login(now, request_id, address, user=found[0] if found else None))
            raise Unauthenticated(_WRONG)
        user, password_hash = found
        secret = make_token(TokenKind.LOGIN)
        token = self._login_token(user, secret, now)
        audit = _of_login(now, request_id, address, user=user, token=token)
        await self._store.accounts.add_login(token, digest(secret), password_hash, audit)
        attempt.take_back()
        assert token.expires_at is not None  # noqa: S101 - every login has an end
        return Login(secret=secret, expires_at=token.expires_at, user=user)

    async def logout(self, call: Call) -> None:
        """End the login that the caller uses."""
        await self.current(call.principal)
        await self._tokens.revoke(call, call.principal.token_id)

    async def current(self, who: Principal) -> tuple[User, Token]:
        """Return who is signed in; `FailedPrecondition` for a token that is no login."""
        if not who.id.startswith("usr"):
            raise FailedPrecondition("this is a token, not a login; revoke it at /auth/v1/tokens")
        user = await self._store.accounts.find_user(who.id)
        token = await self._store.accounts.find_token(who.token_id)
        if user is None or token is None:
            raise Unauthenticated("the login has ended")
        return user, token

    async def create_user(
        self, call: Call, *, email: str, role: Role, password: str | None = None
    ) -> tuple[User, str | None]:
        """Make a user in the caller's project; without a `password`, one is made and returned this once."""
        call.principal.require(Scope.ADMIN)
        email = _checked_email(email)
        hashed, made = await self._new_password(email, password)
        now = self._clock.now()
        user = User(
            id=UserId(new_id("usr", self._clock)),
            project_id=call.principal.project_id,
            email=email,
            role=role,
            is_disabled=False,
            created_at=now,
        )
        audit = entry_for(call, now, target=user.id, email=email, role=str(role))
        await self._store.accounts.add_user(user, hashed, audit, idempotency=call.idempotency)
        return user, made

    async def list_users(self, who: Principal, *, limit: int = 100, cursor: str | None = None) -> Page[User]:
        who.require(Scope.ADMIN)
        return await self._store.accounts.list_users(limit=limit, cursor=cursor)

    async def get_user(self, who: Principal, user_id: str) -> User:
        who.require(Scope.ADMIN)
        user = await self._store.accounts.find_user(user_id)
        if user is None:
            raise NotFound(f"no user {user_id[:64]}", id=user_id[:64])
        return user

    async def update_user(
        self, call: Call, user_id: str, *, role: Role | None = None, is_disabled: bool | None = None
    ) -> User:
        """Change a role, disable or enable; what the user thereby may no longer do ends at once.

        Raises `NotFound`, `FailedPrecondition` if no admin would be left.
        """
        call.principal.require(Scope.ADMIN)
        return await self._change(call, user_id, UserChange(role=role, is_disabled=is_disabled))

    async def reset_password(self, call: Call, user_id: str, *, password: str | None = None) -> tuple[User, str | None]:
        """Set a password, or make one and return it this once; the user's logins end."""
        call.principal.require(Scope.ADMIN)
        user = await self.get_user(call.principal, user_id)
        hashed, made = await self._new_password(user.email, password)
        return await self._change(call, user_id, UserChange(password_hash=hashed)), made

    async def _change(self, call: Call, user_id: str, change: UserChange) -> User:
        now = self._clock.now()
        role = None if change.role is None else str(change.role)
        audit = entry_for(call, now, target=user_id, role=role, is_disabled=change.is_disabled)
        user, _ = await self._store.accounts.change_user(
            user_id, change, at=now, audit=audit, idempotency=call.idempotency
        )
        self._tokens.forget()
        return user

    async def _new_password(self, email: str, password: str | None) -> tuple[str, str | None]:
        made = make_password() if password is None else None
        chosen = made if made is not None else password or ""
        check_password(chosen, email=email)
        return await self._passwords.hash(chosen), made

    async def _is_good_cli_secret(self, secret: str | None) -> bool:
        if secret is None or not is_token(secret):
            return False
        try:
            who = await self._tokens.verify(secret)
        except Unauthenticated:
            return False
        return Scope.ADMIN in who.scopes

    def _first_start(self, password_hash: str, cli_secret: str | None) -> FirstStart:
        now = self._clock.now()
        project = Project(id=ProjectId(new_id("prj", self._clock)), name="default", created_at=now)
        admin = User(
            id=UserId(new_id("usr", self._clock)),
            project_id=project.id,
            email=ADMIN_EMAIL,
            role=Role.ADMIN,
            is_disabled=False,
            created_at=now,
        )
        return FirstStart(
            project=project,
            admin=admin,
            admin_password_hash=password_hash,
            cli_token=None if cli_secret is None else self._cli_token(project, cli_secret, now),
            cli_token_hash=None if cli_secret is None else digest(cli_secret),
            audit=AuditEntry(
                project_id=None,
                principal=BOOTSTRAP,
                action=BOOTSTRAP,
                target=None,
                outcome="ok",
                request_id=BOOTSTRAP,
                address=None,
                details={},
                at=now,
            ),
        )

    def _cli_token(self, project: Project, secret: str, now: datetime) -> Token:
        return Token(
            id=TokenId(new_id("tok", self._clock)),
            kind=TokenKind.SERVICE,
            name=CLI_TOKEN_NAME,
            prefix=shown_prefix(secret),
            project_id=project.id,
            user_id=None,
            scopes=ALL_SCOPES,
            templates=None,
            created_by=BOOTSTRAP,
            created_at=now,
            expires_at=None,
            revoked_at=None,
            last_used_at=None,
        )

    def _login_token(self, user: User, secret: str, now: datetime) -> Token:
        return Token(
            id=TokenId(new_id("tok", self._clock)),
            kind=TokenKind.LOGIN,
            name="login",
            prefix=shown_prefix(secret),
            project_id=user.project_id,
            user_id=user.id,
            scopes=user.role.scopes,
            templates=None,
            created_by=user.id,
            created_at=now,
            expires_at=now + self._login_life,
            revoked_at=None,
            last_used_at=None,
        )


def _checked_email(email: str) -> str:
    email = email.strip().casefold()
    local, at, domain = email.partition("@")
    if not (local and at and domain) or "@" in domain or len(email) > MAX_EMAIL:
        raise InvalidRequest("email is an address such as ada@example.com", field="email", limit=MAX_EMAIL)
    if not email.isprintable() or any(character.isspace() for character in email):
        raise InvalidRequest("email has no spaces or control characters", field="email")
    return email


def _of_login(
    at: datetime, request_id: str, address: str | None, *, user: User | None, token: Token | None = None
) -> AuditEntry:
    """Describe an attempt; an unknown address is not written down: it is often a password typed in the wrong field."""
    return AuditEntry(
        project_id=None if user is None else user.project_id,
        principal="anonymous" if user is None or token is None else user.id,
        action="createLoginSession",
        target=None if user is None else user.id,
        outcome="ok" if token is not None else Unauthenticated.code,
        request_id=request_id,
        address=address,
        details={},
        at=at,
    )

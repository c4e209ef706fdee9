"""Tokens: made once, verified on every request, revoked at once."""

from dataclasses import dataclass
from datetime import datetime

import structlog

from space.control.audit import entry_for
from space.control.identity import new_id
from space.control.secret import digest, is_token, make_token, shown_prefix
from space.core.account import Call, Principal, Scope, Token, TokenKind
from space.core.errors import InvalidRequest, NotFound, PermissionDenied, SpaceError, Unauthenticated
from space.core.ids import ProjectId, TokenId
from space.core.ports import Clock
from space.core.store import Page, Store

log = structlog.get_logger()

MAX_NAME = 128
MAX_TEMPLATES = 64
_MAX_CACHED = 10_000
_USE_SECONDS = 30.0  # how exact `last_used_at` is
_FLUSH_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """What a new token shall be able to do; never more than who asks for it."""

    name: str
    scopes: frozenset[Scope]
    kind: TokenKind = TokenKind.SERVICE
    expires_at: datetime | None = None
    project_id: str | None = None  #: None: the project of who asks
    templates: frozenset[str] | None = None  #: None: as who asks


class Tokens:
    """Verifies from memory; what is there is at most five seconds old, and revocations here empty it at once."""

    def __init__(self, store: Store, clock: Clock, *, cache_seconds: float = 5.0) -> None:
        self._store = store
        self._clock = clock
        self._cache_seconds = cache_seconds
        self._by_secret: dict[bytes, tuple[Token, float]] = {}
        self._good: dict[TokenId, tuple[bool, float]] = {}
        self._changes = 0  #: counts revocations, so that a look-up from before one is not kept after it
        self._used: dict[TokenId, datetime] = {}
        self._use_noted: dict[TokenId, float] = {}

    async def verify(self, secret: str) -> Principal:
        """Return who this secret acts as; raises `Unauthenticated`."""
        token = await self._find(digest(secret)) if is_token(secret) else None
        if token is None or not self._is_good(token):
            raise Unauthenticated("no valid token; sign in, or ask for a new one")
        self._note_use(token.id)
        return Principal(
            id=token.user_id if token.kind is TokenKind.LOGIN and token.user_id is not None else token.id,
            token_id=token.id,
            project_id=token.project_id,
            scopes=token.scopes,
            templates=token.templates,
        )

    async def create(self, call: Call, request: TokenRequest) -> tuple[Token, str]:
        """Make a token and return its secret, which nobody can get again.

        Raises:
            InvalidRequest: the request cannot be accepted; `details.field` says where.
            PermissionDenied: it asks for more than the caller has, or the caller may not make tokens.
        """
        now = self._clock.now()
        _check(request, now)
        maker = await self._maker(call.principal)
        _check_is_within(request, call.principal, maker)
        secret = make_token(request.kind)
        token = Token(
            id=TokenId(new_id("tok", self._clock)),
            kind=request.kind,
            name=request.name,
            prefix=shown_prefix(secret),
            project_id=ProjectId(request.project_id or call.principal.project_id),
            user_id=maker.user_id,
            scopes=request.scopes,
            templates=request.templates if request.templates is not None else call.principal.templates,
            created_by=call.principal.id,
            created_at=now,
            expires_at=request.expires_at,
            revoked_at=None,
            last_used_at=None,
        )
        scopes = sorted(request.scopes)
        audit = entry_for(call, now, target=token.id, name=token.name, kind=str(token.kind), scopes=scopes)
        await self._store.accounts.add_token(
            token, digest(secret), maker=call.principal.token_id, audit=audit, idempotency=call.idempotency
        )
        return token, secret

    async def list(self, who: Principal, *, limit: int = 100, cursor: str | None = None) -> Page[Token]:
        """List all tokens for an admin, for a user the own ones, for a token those that it made; no logins."""
        is_admin, is_user = Scope.ADMIN in who.scopes, who.id.startswith("usr")
        return await self._store.accounts.list_tokens(
            user_id=who.id if is_user and not is_admin else None,
            maker=None if is_user or is_admin else who.id,
            limit=limit,
            cursor=cursor,
        )

    async def get(self, who: Principal, token_id: str) -> Token:
        """Return one that `list` would show, or the caller's own."""
        token = await self._store.accounts.find_token(token_id)
        if token is None or not _is_visible(token, who):
            raise NotFound(f"no token {token_id[:64]}", id=token_id[:64])
        return token

    async def revoke(self, call: Call, token_id: str) -> None:
        """End a token, now here and within five seconds elsewhere; one that has ended stays so."""
        token = await self.get(call.principal, token_id)
        now = self._clock.now()
        await self._store.accounts.revoke_token(
            token.id, at=now, audit=entry_for(call, now, target=token.id, name=token.name)
        )
        self.forget()

    async def is_revoked(self, token_id: TokenId) -> bool:
        """Whether a token was taken away, or its user disabled; what is known is at most five seconds old.

        Its expiry does not count: this is asked for streams that are open, which only a revocation cuts.
        """
        now = self._clock.monotonic()
        known = self._good.get(token_id)
        if known is not None and now - known[1] < self._cache_seconds:
            return not known[0]
        changes = self._changes
        token = await self._store.accounts.find_token(token_id)
        is_good = token is not None and token.revoked_at is None and await self._has_user(token)
        if changes == self._changes:
            if len(self._good) >= _MAX_CACHED:
                self._good.clear()
            self._good[token_id] = (is_good, now)
        return not is_good

    def forget(self) -> None:
        """Look everything up again: some tokens were revoked."""
        self._changes += 1
        self._by_secret.clear()
        self._good.clear()

    async def flush(self) -> None:
        """Write when tokens were last used; if that fails it stays noted."""
        used, self._used = self._used, {}
        if not used:
            return
        try:
            await self._store.accounts.used(used)
        except BaseException:
            self._used = used | self._used
            raise

    async def run(self) -> None:
        """Write uses every few seconds, until cancelled."""
        while True:
            await self._clock.sleep(_FLUSH_SECONDS)
            try:
                await self.flush()
            except SpaceError as error:
                log.warning("tokens.use_not_written", error=error.message)

    async def _find(self, key: bytes) -> Token | None:
        now = self._clock.monotonic()
        cached = self._by_secret.get(key)
        if cached is not None and now - cached[1] < self._cache_seconds:
            return cached[0]
        changes = self._changes
        token = await self._store.accounts.find_secret(key)
        if token is not None and changes == self._changes:
            if len(self._by_secret) >= _MAX_CACHED:
                self._by_secret.clear()
            self._by_secret[key] = (token, now)
        return token

    def _is_good(self, token: Token) -> bool:
        return token.revoked_at is None and (token.expires_at is None or token.expires_at > self._clock.now())

    async def _has_user(self, token: Token) -> bool:
        if token.user_id is None:
            return True
        user = await self._store.accounts.find_user(token.user_id)
        return user is not None and not user.is_disabled

    def _note_use(self, token_id: TokenId) -> None:
        now = self._clock.monotonic()
        noted = self._use_noted.get(token_id)
        if noted is not None and now - noted < _USE_SECONDS:
            return
        if len(self._use_noted) >= _MAX_CACHED:
            self._use_noted.clear()
        self._use_noted[token_id] = now
        self._used[token_id] = self._clock.now()

    async def _maker(self, who: Principal) -> Token:
        maker = await self._store.accounts.find_token(who.token_id)
        if maker is None:
            raise Unauthenticated("the token that asks was revoked")
        return maker


def _check(request: TokenRequest, now: datetime) -> None:
    if not 0 < len(request.name) <= MAX_NAME or not request.name.isprintable():
        raise InvalidRequest(f"name has 1 to {MAX_NAME} printable characters", field="name", limit=MAX_NAME)
    if request.kind not in (TokenKind.SERVICE, TokenKind.E2B):
        raise InvalidRequest("kind is service or e2b; logins are made by signing in", field="kind")
    if not request.scopes:
        raise InvalidRequest("scopes names at least one", field="scopes")
    if request.expires_at is not None and request.expires_at <= now:
        raise InvalidRequest("expires_at is in the past", field="expires_at")
    if request.templates is not None:
        if not 0 < len(request.templates) <= MAX_TEMPLATES:
            raise InvalidRequest(f"templates names 1 to {MAX_TEMPLATES}", field="templates", limit=MAX_TEMPLATES)
        if any(not 0 < len(name) <= 256 or not name.isprintable() for name in request.templates):
            raise InvalidRequest("a template's name has 1 to 256 printable characters", field="templates")


def _check_is_within(request: TokenRequest, who: Principal, maker: Token) -> None:
    """Raise `PermissionDenied` for a token that could do what its maker cannot."""
    is_admin = Scope.ADMIN in who.scopes
    if maker.kind is not TokenKind.LOGIN and not is_admin:
        raise PermissionDenied(
            "only a user who signed in, or a token with the scope admin, may make tokens", scope="admin"
        )
    beyond = request.scopes - who.scopes
    if beyond and not is_admin:
        raise PermissionDenied(
            f"this asks for scopes that you do not have: {', '.join(sorted(beyond))}", scope=min(beyond)
        )
    if request.project_id not in (None, who.project_id) and not is_admin:
        raise PermissionDenied("only an admin may make tokens for another project", scope="admin")
    if who.templates is not None and request.templates is not None and not request.templates <= who.templates:
        raise PermissionDenied("this asks for templates that you may not use", field="templates")
    end = None if maker.kind is TokenKind.LOGIN else maker.expires_at
    if end is not None and (request.expires_at is None or request.expires_at > end):
        raise PermissionDenied("a token cannot make one that outlives it", field="expires_at")


def _is_visible(token: Token, who: Principal) -> bool:
    if Scope.ADMIN in who.scopes or token.id == who.token_id:
        return True
    if token.kind is TokenKind.LOGIN:
        return False
    return token.created_by == who.id or (token.user_id == who.id)

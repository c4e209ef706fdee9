"""Session tokens: the right to read one command's stream, for minutes."""

import hmac
from datetime import datetime, timedelta

from space.control.secret import SessionSecret, digest, is_session_secret, make_session_secret
from space.control.tokens import Tokens
from space.core.account import Principal
from space.core.command import SessionToken
from space.core.errors import Unauthenticated
from space.core.event import AuditEntry
from space.core.ids import SessionId
from space.core.ports import Clock
from space.core.store import Store

_MAX_CACHED = 4096


class SessionTokens:
    """Issues and verifies; what a token may do ends with the token that its holder signed in with."""

    def __init__(self, store: Store, tokens: Tokens, clock: Clock, *, seconds: float) -> None:
        self._store = store
        self._tokens = tokens
        self._clock = clock
        self._life = timedelta(seconds=seconds)
        self._verified: dict[bytes, tuple[SessionToken, float]] = {}
        self._cache_seconds = 5.0

    def issue(self, session_id: SessionId, who: Principal, *, now: datetime) -> tuple[SessionToken, SessionSecret]:
        """Make a token and its secret; the caller records the token."""
        secret = make_session_secret()
        token = SessionToken(
            session_id=session_id,
            token_hash=digest(secret),
            principal=who.id,
            token_id=who.token_id,
            expires_at=now + self._life,
        )
        return token, SessionSecret(secret=secret, expires_at=token.expires_at)

    async def renew(self, session_id: SessionId, who: Principal, audit: AuditEntry) -> SessionSecret:
        """Issue and record another one; older ones live to their own end."""
        token, secret = self.issue(session_id, who, now=audit.at)
        await self._store.processes.add_token(token, audit)
        return secret

    async def verify(self, secret: str) -> SessionToken:
        """Return the token that has this secret; raises `Unauthenticated`."""
        token = await self._find(secret) if is_session_secret(secret) else None
        if token is None or token.expires_at <= self._clock.now() or await self.is_revoked(token):
            raise Unauthenticated("no valid session token; renew it at POST /v1/sandboxes/{id}/sessions/{sid}/token")
        return token

    async def is_revoked(self, token: SessionToken) -> bool:
        """Whether its holder has lost the right to call at all; its own expiry does not count."""
        return await self._tokens.is_revoked(token.token_id)

    async def _find(self, secret: str) -> SessionToken | None:
        key, now = digest(secret), self._clock.monotonic()
        cached = self._verified.get(key)
        if cached is not None and now - cached[1] < self._cache_seconds:
            return cached[0]
        token = await self._store.processes.find_token(key)
        if token is None or not hmac.compare_digest(token.token_hash, key):
            return None
        if len(self._verified) >= _MAX_CACHED:
            self._verified.clear()
        self._verified[key] = (token, now)
        return token

"""Idempotency keys: the same request twice is done once, and answered twice.

A key belongs to (principal, method, path).  Three things can be known of one: it is in flight here, and a second
request waits; its change was recorded, which the change's own transaction wrote down as `target_id`; or its answer
is kept, for 24 hours.  Nothing is written before the change: the store has one server, so a key of a request that
died with the server without having changed anything simply runs again.  (A store shared by several servers reserves
the key in `IdempotencyStore.find`.)
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from space.core.account import IdempotencyRef
from space.core.errors import IdempotencyConflict, InvalidRequest, SpaceError
from space.core.ports import Clock
from space.core.store import KeptAnswer, Store

log = structlog.get_logger()

MAX_KEY = 255
MAX_KEPT_BODY = 1 << 20  # of an answer; a longer one can be had again only from what the call made
_PURGE_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """Nobody has used the key: go on, then call `complete` or `abandon`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Give this answer again."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Linked:
    """It was done, but its answer is not kept: it held a secret, or the server died.  Rebuild it from what it made."""

    target_id: str  #: an id, by whose prefix one knows what it is
    status: int | None = None  #: of the first answer, if there was one


class Idempotency:
    """Decides what a request with an `Idempotency-Key` may do."""

    def __init__(self, store: Store, clock: Clock, *, keep_hours: float = 24) -> None:
        self._store = store
        self._clock = clock
        self._keep = timedelta(hours=keep_hours)
        self._in_flight: dict[tuple[str, str, str], tuple[bytes, asyncio.Event]] = {}

    async def begin(self, ref: IdempotencyRef) -> Fresh | Replay | Linked:
        """Reserve the key, or find what it led to.  Scopes are checked before.

        Raises:
            IdempotencyConflict: the key was used for another body.
            InvalidRequest: the key has no acceptable form.
        """
        if not 0 < len(ref.key) <= MAX_KEY or not ref.key.isprintable():
            raise InvalidRequest(f"an Idempotency-Key has 1 to {MAX_KEY} printable characters", field="Idempotency-Key")
        name = _name(ref)
        while (held := self._in_flight.get(name)) is not None:
            request_hash, done = held
            _require_same(request_hash, ref)
            await done.wait()
        # From here to the reservation below nothing may be awaited before the key is held.
        done = asyncio.Event()
        self._in_flight[name] = (ref.request_hash, done)
        try:
            known = await self._store.idempotency.find(ref, now=self._clock.now())
            if known is None:
                return Fresh()
            _require_same(known.request_hash, ref)
        except BaseException:
            self._release(ref)
            raise
        self._release(ref)
        if known.body is None or known.status is None:
            return Linked(target_id=known.target_id or "", status=known.status)
        return Replay(status=known.status, body=known.body, headers=known.headers)

    async def complete(
        self,
        ref: IdempotencyRef,
        *,
        status: int,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        keep_body: bool = True,
    ) -> None:
        """Keep the answer: a success, or an error that a retry would meet again.

        With `keep_body` false only the link to what was made stays, because the answer holds a secret.  Call it
        before answering; if it fails, the answer stands and a retry rebuilds it or runs again.
        """
        kept = body if keep_body and len(body) <= MAX_KEPT_BODY else None
        now = self._clock.now()
        answer = KeptAnswer(
            request_hash=ref.request_hash, target_id=None, status=status, body=kept, headers=dict(headers or {})
        )
        try:
            await self._store.idempotency.keep(ref, answer, at=now, expires_at=now + self._keep)
        except SpaceError as error:
            log.warning("idempotency.answer_not_kept", error=error.message, status=status)
        finally:
            self._release(ref)

    async def abandon(self, ref: IdempotencyRef) -> None:
        """Let a retry run: the request failed in a way that may pass."""
        self._release(ref)

    async def run(self) -> None:
        """Forget expired keys every ten minutes, until cancelled."""
        while True:
            await self._clock.sleep(_PURGE_SECONDS)
            try:
                await self._store.idempotency.purge(self._clock.now())
            except SpaceError as error:
                log.warning("idempotency.not_purged", error=error.message)

    def _release(self, ref: IdempotencyRef) -> None:
        held = self._in_flight.pop(_name(ref), None)
        if held is not None:
            held[1].set()


def _name(ref: IdempotencyRef) -> tuple[str, str, str]:
    return ref.principal_id, ref.method_path, ref.key


def _require_same(request_hash: bytes, ref: IdempotencyRef) -> None:
    if request_hash != ref.request_hash:
        raise IdempotencyConflict(
            "this Idempotency-Key was used for another request; use a new key", field="Idempotency-Key"
        )

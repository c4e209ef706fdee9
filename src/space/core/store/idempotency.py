"""What the store does with idempotency keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from space.core.account import IdempotencyRef


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """What is known of an idempotency key whose request did something."""

    request_hash: bytes
    target_id: str | None  #: what the change made
    status: int | None  #: None: the server died before it answered
    body: bytes | None  #: None: not kept
    headers: Mapping[str, str]


class IdempotencyStore(Protocol):
    """The keys of requests and the answers that they got."""

    async def find(self, ref: IdempotencyRef, *, now: datetime) -> KeptAnswer | None:
        """Return what became of the key, unless it has expired.

        A store that several servers share must reserve the key here for one of them.
        """
        ...

    async def keep(self, ref: IdempotencyRef, answer: KeptAnswer, *, at: datetime, expires_at: datetime) -> None:
        """Record an answer; the target that the change's transaction linked stays."""
        ...

    async def purge(self, now: datetime) -> None:
        """Forget keys that have expired."""
        ...

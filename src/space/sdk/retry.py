"""When to try again (contract §1), decided without doing any waiting."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from space.sdk.errors import SpaceError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long.  Times are in seconds."""

    attempts: int = 5
    first_delay: float = 1.0
    longest_delay: float = 30.0
    longest_retry_after: float = 60.0  #: a server that asks for more gets no retry: the caller should know
    on_retry: Callable[[SpaceError, float], None] | None = None  #: told of each failure that is retried, and the delay


@dataclass(slots=True)
class Attempts:
    """The attempts at one call."""

    policy: RetryPolicy
    failed: int = 0

    def delay_after(self, error: SpaceError) -> float | None:
        """Return how long to wait before the next attempt, or None if there is to be none."""
        self.failed += 1
        if not error.retryable or self.failed >= self.policy.attempts:
            return None
        delay = error.retry_after
        if delay is None:
            delay = jittered(min(self.policy.first_delay * 2 ** (self.failed - 1), self.policy.longest_delay))
        elif delay > self.policy.longest_retry_after:
            return None
        if self.policy.on_retry is not None:
            self.policy.on_retry(error, delay)
        return delay


@dataclass(slots=True)
class Reconnection:
    """Patience with a stream that breaks: it ends when nothing at all has arrived for `patience` seconds."""

    patience: float = 120.0
    first_delay: float = 0.1
    longest_delay: float = 5.0
    failed: int = 0
    alive_at: float | None = field(default=None)

    def saw_life(self, now: float) -> None:
        """Note that something arrived."""
        self.failed = 0
        self.alive_at = now

    def delay_at(self, now: float, retry_after: float | None = None) -> float | None:
        """Return how long to wait before the next connection, or None once patience has run out."""
        if self.alive_at is None:
            self.alive_at = now
        left = self.alive_at + self.patience - now
        if left <= 0:
            return None
        delay = jittered(min(self.first_delay * 2 ** min(self.failed, 16), self.longest_delay))
        self.failed += 1
        return min(max(delay, retry_after or 0.0), left)


def jittered(delay: float) -> float:
    """Spread a delay over its upper half, so that clients cut off together do not come back together."""
    return delay * (0.5 + random.random() / 2)  # noqa: S311 - not for security

"""How many requests a client has in flight, and what happens to one too many."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from space.config import ConcurrencyMode
from space.core.errors import LimitExceeded

log = structlog.get_logger()


class Concurrency:
    """Counts requests in flight per principal: published default 32, and only observed."""

    def __init__(self, *, limit: int, mode: ConcurrencyMode) -> None:
        self._limit = limit
        self._mode = mode
        self._in_flight: dict[str, int] = {}

    @contextmanager
    def admitted(self, client: str) -> Iterator[None]:
        """Count a request while it lasts.

        Raises:
            LimitExceeded: there are too many and the mode is `enforce`.
        """
        if self._mode is ConcurrencyMode.OFF:
            yield
            return
        count = self._in_flight.get(client, 0) + 1
        if count > self._limit:
            if self._mode is ConcurrencyMode.ENFORCE:
                raise LimitExceeded(
                    f"more than {self._limit} requests in flight for this client; wait for one to end",
                    quota="concurrency",
                    limit=self._limit,
                )
            if count == self._limit + 1:  # once a burst, not once a request
                log.warning("concurrency.exceeded", client=client, limit=self._limit)
        self._in_flight[client] = count
        try:
            yield
        finally:
            left = self._in_flight[client] - 1
            if left:
                self._in_flight[client] = left
            else:
                del self._in_flight[client]

    def in_flight(self, client: str) -> int:
        """Return how many requests this client has now."""
        return self._in_flight.get(client, 0)

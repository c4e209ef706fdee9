"""What the store does with the timelines of sandboxes."""

from collections.abc import Sequence
from typing import Protocol

from space.core.event import Event


class EventStore(Protocol):
    """The timelines of sandboxes."""

    async def append(self, event: Event) -> Event:
        """Add an event that belongs to no other change."""
        ...

    async def read(self, sandbox_id: str, *, after: int, limit: int) -> Sequence[Event]:
        """Return the events with a `seq` above `after`, oldest first."""
        ...

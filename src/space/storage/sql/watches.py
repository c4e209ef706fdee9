"""Waiting for commits, within this process."""

import asyncio
import contextlib
from collections.abc import Iterator


class SqlWatch:
    """`core.store.Watch`."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        self.changed.clear()


class Watches:
    """Who waits for which topic."""

    def __init__(self) -> None:
        self._by_topic: dict[str, set[SqlWatch]] = {}

    @contextlib.contextmanager
    def watch(self, topic: str) -> Iterator[SqlWatch]:
        """Watch `topic` until the block ends."""
        watch = SqlWatch()
        self._by_topic.setdefault(topic, set()).add(watch)
        try:
            yield watch
        finally:
            waiting = self._by_topic[topic]
            waiting.discard(watch)
            if not waiting:
                del self._by_topic[topic]

    def notify(self, topics: list[str]) -> None:
        """Wake everybody who waits for one of `topics`."""
        for topic in topics:
            for watch in self._by_topic.get(topic, ()):
                watch.changed.set()

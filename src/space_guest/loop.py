"""A small event loop: descriptors, timers, and calls from worker threads.

Not asyncio, because the agent starts in every sandbox: importing asyncio takes 38 ms of CPU here and pulls in
logging, ssl and concurrent.futures; everything that the agent imports instead takes 12 ms (python3.11, 2 cores).
"""

import contextlib
import heapq
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable

READ = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
WRITE = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR


class Timer:
    """A call that is due at `when` on the loop's clock; `cancel` is harmless afterwards too."""

    __slots__ = ("call", "when")

    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when = when
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None

    def __lt__(self, other: "Timer") -> bool:
        return self.when < other.when


class Loop:
    """Runs callbacks in one thread; only `call_threadsafe` may be used from another."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[int, Callable[[int], None]]] = {}
        self._timers: list[Timer] = []
        self._calls: deque[Callable[[], None]] = deque()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self.watch(self._wake_reader, select.EPOLLIN, self._woken)
        self._running = False

    @property
    def wake_fd(self) -> int:
        """A descriptor that wakes the loop when something is written to it, e.g. by `signal.set_wakeup_fd`."""
        return self._wake_writer

    def watch(self, fd: int, events: int, call: Callable[[int], None]) -> None:
        """Call `call(events)` whenever `fd` is ready; replaces an earlier watch of it."""
        known = self._watched.get(fd)
        if known is None:
            self._epoll.register(fd, events)
        elif known[0] != events:
            self._epoll.modify(fd, events)
        self._watched[fd] = events, call

    def unwatch(self, fd: int) -> None:
        """Forget `fd`, which must still be open; harmless if it is not watched."""
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(time.monotonic() + seconds, call)
        heapq.heappush(self._timers, timer)
        return timer

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run `call` once the descriptors that are ready now have had their turn."""
        self._calls.append(call)

    def call_threadsafe(self, call: Callable[[], None]) -> None:
        """Run `call` in the loop's thread soon."""
        self._calls.append(call)
        with contextlib.suppress(BlockingIOError):  # the pipe is full of wake-ups already
            os.write(self._wake_writer, b"\0")

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        """Run until `stop`; an exception in a callback is reported on stderr and ends nothing else."""
        self._running = True
        while self._running:
            ready = self._epoll.poll(self._until_next_timer())
            if not all(fd in self._watched for fd, _ in ready):
                self._renew()
                continue
            for fd, events in ready:
                watched = self._watched.get(fd)
                if watched is not None:
                    self._run(watched[1], events)
            self._run_due()
            while self._calls:
                self._run(self._calls.popleft())

    def _renew(self) -> None:
        """Watch everything anew.

        A gVisor kernel that was restored goes on reporting a socket that was connected before, even once it is
        unregistered and closed: the loop would spin, and a new descriptor of that number could not be registered.
        """
        self._epoll.close()
        self._epoll = select.epoll()
        for fd, (events, _) in self._watched.items():
            self._epoll.register(fd, events)

    def _run(self, call: Callable[..., None], *args: int) -> None:
        try:
            call(*args)
        except Exception:
            report()

    def _woken(self, events: int) -> None:
        os.read(self._wake_reader, 4096)

    def _until_next_timer(self) -> float | None:
        while self._timers and self._timers[0].call is None:
            heapq.heappop(self._timers)
        if self._calls:
            return 0
        return max(0.0, self._timers[0].when - time.monotonic()) if self._timers else None

    def _run_due(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0].when <= now:
            call = heapq.heappop(self._timers).call
            if call is not None:
                self._run(call)


def report() -> None:
    """Print the present exception to stderr; nothing that a guest or a node sent is in it but the traceback."""
    import traceback

    traceback.print_exc(file=sys.stderr)

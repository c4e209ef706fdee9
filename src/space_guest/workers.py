"""Threads for requests that touch files, so that a slow disk or a slow client never stops the loop."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections import deque
from collections.abc import Callable

from space_guest.loop import Loop, report
from space_guest.protocol import CHUNK, FILE_WINDOW
from space_guest.request import Refused, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_THREADS = 48
STACK = 1024 * 1024
IDLE_SECONDS = 30.0

_CODES = {
    errno.ENOENT: "not_found",
    errno.EACCES: "forbidden",
    errno.EPERM: "forbidden",
    errno.EROFS: "forbidden",
    errno.ENOSPC: "insufficient_storage",
    errno.EDQUOT: "insufficient_storage",
    errno.EFBIG: "insufficient_storage",
    errno.ENAMETOOLONG: "invalid_request",
    errno.EINVAL: "invalid_request",
    errno.EIO: "internal",
    errno.EMFILE: "rate_limited",
    errno.ENFILE: "rate_limited",
    errno.ENOMEM: "rate_limited",
}


class Cancelled(Exception):
    """The node does not want the answer any more, or is gone."""


class Channel:
    """The bytes of a request, for the thread that serves it: both directions block while the other end is slower."""

    def __init__(self, loop: Loop, request: Request) -> None:
        self.args = request.args
        self._loop = loop
        self._request = request
        self._changed = threading.Condition()
        self._received: deque[bytes] = deque()
        self._consumed = 0
        self._granted = FILE_WINDOW
        self._sent = 0
        self._limit = FILE_WINDOW
        self._is_ended = False
        self._is_cancelled = False
        self._cancel_calls: list[Callable[[], None]] = []
        request.on_data = self._on_data
        request.on_end = self._on_end
        request.on_credit = self._on_credit
        request.on_cancel = self.cancel

    # In the worker's thread

    def receive(self) -> bytes:
        """Return the next bytes of the node, `b""` at their end; raises `Cancelled`."""
        with self._changed:
            while not (self._received or self._is_ended or self._is_cancelled):
                self._changed.wait()
            if self._is_cancelled:
                raise Cancelled
            if not self._received:
                return b""
            data = self._received.popleft()
        self._consumed += len(data)
        if self._granted - self._consumed <= FILE_WINDOW // 2:
            self._granted = limit = self._consumed + FILE_WINDOW
            self._loop.call_threadsafe(lambda: self._request.grant(limit))
        return data

    def send(self, data: bytes) -> None:
        """Send all of `data`, waiting for the node's credit; raises `Cancelled`."""
        view = memoryview(data)
        while view:
            with self._changed:
                while self._sent >= self._limit and not self._is_cancelled:
                    self._changed.wait()
                if self._is_cancelled:
                    raise Cancelled
                piece = bytes(view[: min(CHUNK, self._limit - self._sent)])
            self._sent += len(piece)
            view = view[len(piece) :]
            self._later(self._request.send, piece)

    def opened(self, body: dict[str, Any]) -> None:
        """Send what goes before the bytes."""
        self._later(self._request.opened, body)

    def end(self) -> None:
        self._loop.call_threadsafe(self._request.end)

    def on_cancel(self, call: Callable[[], None]) -> None:
        """Call this, in the loop's thread, if the request is cancelled."""
        with self._changed:
            self._cancel_calls.append(call)
            is_late = self._is_cancelled
        if is_late:
            call()

    def _later(self, call: Callable[[Any], None], value: Any) -> None:
        self._loop.call_threadsafe(lambda: call(value))

    # In the loop's thread

    def cancel(self) -> None:
        with self._changed:
            self._is_cancelled = True
            self._received.clear()
            self._changed.notify_all()
            calls = self._cancel_calls[:]
        for call in calls:
            call()

    def _on_data(self, data: bytes) -> None:
        with self._changed:
            self._received.append(data)
            self._changed.notify_all()

    def _on_end(self) -> None:
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def _on_credit(self) -> None:
        with self._changed:
            self._limit = self._request.limit
            self._changed.notify_all()


Work = Callable[[Channel], "dict[str, Any]"]


class Workers:
    """Runs each request's work in a thread; answers with what it returns, or with why it failed."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        self._idle = 0

    def serve(self, request: Request, work: Work) -> None:
        channel = Channel(self._loop, request)
        with self._changed:
            self._jobs.append(lambda: self._serve(request, channel, work))
            is_short = len(self._jobs) > self._idle and self._threads < MAX_THREADS
            if is_short:
                self._threads += 1
            else:
                self._changed.notify()
        if is_short:
            start_thread(self._run)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                has_job = self._changed.wait_for(lambda: bool(self._jobs), IDLE_SECONDS)
                self._idle -= 1
                if not has_job:
                    self._threads -= 1
                    return
                job = self._jobs.popleft()
            job()

    def _serve(self, request: Request, channel: Channel, work: Work) -> None:
        try:
            body = work(channel)
        except Cancelled:
            return  # the connection has answered it
        except Refused as error:
            refused = error
        except OSError as error:
            refused = refusal(error)
        except Exception:
            report()
            refused = Refused("internal", "the agent failed; its log says why")
        else:
            self._loop.call_threadsafe(lambda: request.reply(body))
            return
        self._loop.call_threadsafe(lambda: request.fail(refused))


def start_thread(run: Callable[[], None]) -> None:
    """Start a thread that does not keep the agent alive."""
    with contextlib.suppress(ValueError):
        threading.stack_size(STACK)
    threading.Thread(target=run, daemon=True).start()


def refusal(error: OSError) -> Refused:
    """Return the typed form of the kernel's refusal; what the present state forbids is `failed_precondition`."""
    number = error.errno or errno.EIO
    return Refused(_CODES.get(number, "failed_precondition"), errno=number)

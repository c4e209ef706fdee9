"""Ctrl-C and friends, so that no sandbox is left behind and no user is kept waiting."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked this command to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Interruption:
    """While it is entered, the first signal raises `Interrupted` in the main thread and the second leaves at once.

    Inside `deferred()` the first is kept until the end of the block: for a request whose answer must be known.
    """

    def __init__(self) -> None:
        self._received: int | None = None
        self._is_deferred = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Keep the first signal back until the block has ended."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
            if self._received is not None:
                raise Interrupted(self._received)

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Clean up without being interrupted by another first signal; a second one still leaves at once."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._received is not None:
            os._exit(128 + number)
        self._received = number
        if not self._is_deferred:
            raise Interrupted(number)

"""A process as the protocol knows it: output kept until acknowledged, stdin, and how it ended.  No system calls."""

from __future__ import annotations

from collections.abc import Callable

from space_guest.output import Budget, OutputStream
from space_guest.protocol import PTY, STDERR, STDIN_WINDOW, STDOUT, STREAM_NAMES, STREAM_NUMBERS, ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs 5 ms at start
    from typing import Any

    from space_guest.connection import Connection


class Ended:
    """How a process ended: a code, or the name of a signal; `reason` is `timeout`, `killed`, `lost` or None."""

    __slots__ = ("exit_code", "reason", "signal")

    def __init__(self, exit_code: int | None, signal: str | None = None, reason: str | None = None) -> None:
        self.exit_code = exit_code
        self.signal = signal
        self.reason = reason


class SpawnFailed(Exception):
    """A program that cannot be started: 127 if there is no such program, else 126."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message


class Process:
    """Bookkeeping of one process, whoever runs it.

    The runner appends output to `streams`, calls `started`, `finish` and `stdin_written`; it sets the `on_…` hooks.
    """

    def __init__(self, process_id: str, *, pty: bool, stdin: bool, budget: Budget) -> None:
        self.id = process_id
        self.os_pid: int | None = None
        self.ended: Ended | None = None
        self.connection: Connection | None = None
        self.channel = 0
        numbers = (PTY,) if pty else (STDOUT, STDERR)
        self.streams = {number: OutputStream(number, budget) for number in numbers}
        self.is_stdin_open = stdin or pty
        self.stdin_received = 0
        self.stdin_written = 0
        self.on_room: Callable[[OutputStream], None] = lambda stream: None
        self.on_stdin: Callable[[bytes], None] = lambda data: None
        self.on_stdin_end: Callable[[], None] = lambda: None

    # What the runner tells

    def started(self, os_pid: int) -> None:
        self.os_pid = os_pid
        if self.connection is not None:
            self.connection.process_started(self)

    def append(self, number: int, data: bytes) -> None:
        """Keep output and send what may be sent."""
        self.streams[number].append(data)
        if self.connection is not None:
            self.connection.pump(self)

    def finish(self, ended: Ended) -> None:
        """Say how it ended; all of its output has been appended before."""
        self.ended = ended
        self.is_stdin_open = False
        if self.connection is not None:
            self.connection.pump(self)

    def consumed(self, count: int) -> None:
        """`count` more bytes of stdin were written to the process."""
        self.stdin_written += count
        if self.connection is not None and self.ended is None:
            self.connection.stdin_credit(self)

    def stdin_closed(self) -> None:
        """The process takes no more stdin."""
        self.is_stdin_open = False
        if self.connection is not None and self.ended is None:
            self.connection.stdin_refused(self)

    # What the node tells

    def rewind(self, offsets: dict[str, Any]) -> bool:
        """Send output again from these offsets (stream name → offset; missing: 0)."""
        wanted = {STREAM_NUMBERS.get(name, 0): offset for name, offset in offsets.items()}
        if any(type(offset) is not int for offset in wanted.values()):
            return False
        if any(offset for number, offset in wanted.items() if number not in self.streams):
            return False
        return all(stream.rewind(wanted.get(number, 0)) for number, stream in self.streams.items())

    def acknowledge(self, number: int, offset: int) -> None:
        stream = self.streams.get(number)
        if stream is None:
            raise ProtocolError("an acknowledgement for another kind of stream")
        stream.acknowledge(offset)
        if self.ended is None and stream.room:
            self.on_room(stream)

    def receive_stdin(self, offset: int, data: bytes) -> None:
        if offset != self.stdin_received or offset + len(data) > self.stdin_written + STDIN_WINDOW:
            raise ProtocolError("stdin out of order or beyond its window")
        self.stdin_received += len(data)
        if self.is_stdin_open:
            self.on_stdin(data)

    def receive_stdin_end(self, offset: int) -> None:
        if offset != self.stdin_received:
            raise ProtocolError("stdin ends before it was complete")
        if self.is_stdin_open:
            self.is_stdin_open = False
            self.on_stdin_end()

    @property
    def is_sent(self) -> bool:
        return all(stream.sent == stream.end for stream in self.streams.values())

    def describe(self) -> dict[str, Any]:
        """Return what `processes` lists and `EXITED` carries."""
        summary: dict[str, Any] = {
            "process_id": self.id,
            "os_pid": self.os_pid,
            "running": self.ended is None,
            "offsets": {STREAM_NAMES[number]: stream.end for number, stream in self.streams.items()},
        }
        if self.ended is not None:
            summary |= {
                "exit_code": self.ended.exit_code,
                "signal": self.ended.signal,
                "reason": self.ended.reason,
            }
        return summary

"""Descriptors between the agent and one process: readers of its output, and the writer of its stdin."""

import contextlib
import fcntl
import os
from collections.abc import Callable
from struct import Struct

from space_guest.loop import READ, WRITE, Loop
from space_guest.process import Process
from space_guest.protocol import CHUNK

F_SETPIPE_SZ = 1031
FIONREAD = 0x541B
TIOCSWINSZ = 0x5414
PIPE_SIZE = 64 * 1024
_INT = Struct("i")
_WINSIZE = Struct("HHHH")
_scratch = memoryview(bytearray(CHUNK))  # one thread reads, and copies before it reads again


class Reader:
    """Reads one output stream while there is room for it; after `discard` it reads and forgets.

    `owed` counts down the bytes that lay in the pipe when the process ended.
    """

    def __init__(self, loop: Loop, fd: int, process: Process, number: int, advance: Callable[[], None]) -> None:
        self._loop = loop
        self._fd = fd
        self._process = process
        self._stream = process.streams[number]
        self._advance = advance
        self._is_large = False
        self._is_watched = False
        self._is_discarding = False
        self.owed = 1 << 62
        self.is_closed = False
        os.set_blocking(fd, False)
        previous = process.on_room
        process.on_room = lambda stream: self.resume() if stream is self._stream else previous(stream)

    def resume(self) -> None:
        """Wait for output again."""
        if not self.is_closed and not self._is_watched:
            self._is_watched = True
            self._loop.watch(self._fd, READ, self._ready)

    def expect_rest(self) -> None:
        """The process has ended: note how much it has left behind, and take it."""
        if self.is_closed:
            return
        self.owed = _INT.unpack(fcntl.ioctl(self._fd, FIONREAD, bytes(_INT.size)))[0]
        while not self.is_closed and self._read():
            pass

    def discard(self) -> None:
        """Keep the pipe open and empty for children that still write to it, so that they neither block nor die."""
        self._is_discarding = True
        self.resume()

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._loop.unwatch(self._fd)
            os.close(self._fd)

    def _ready(self, events: int) -> None:
        self._read()
        self._advance()

    def _read(self) -> bool:
        """Read once; False if nothing is there, there is no room, or the stream has ended."""
        room = CHUNK if self._is_discarding else min(self._stream.room, CHUNK)
        if not room:
            self._is_watched = False
            self._loop.unwatch(self._fd)
            return False
        try:
            count = os.readv(self._fd, [_scratch[:room]])
        except BlockingIOError:
            return False
        except OSError:  # EIO: the last process has let go of the terminal
            count = 0
        if not count:
            self.owed = 0
            self.close()
            return False
        if not self._is_discarding:
            self.owed -= count
            if count >= PIPE_SIZE and not self._is_large:
                self._enlarge()
            self._process.append(self._stream.number, bytes(_scratch[:count]))
        return True

    def _enlarge(self) -> None:
        self._is_large = True
        with contextlib.suppress(OSError):  # a terminal, or the user's quota of pipe pages is used up
            fcntl.fcntl(self._fd, F_SETPIPE_SZ, CHUNK)


class Writer:
    """Writes stdin as fast as the process takes it; what waits is bounded by the window of the protocol."""

    def __init__(self, loop: Loop, fd: int, process: Process, *, is_terminal: bool = False) -> None:
        self._loop = loop
        self._fd = fd
        self._process = process
        self._is_terminal = is_terminal
        self._waiting = bytearray()
        self._is_ending = False
        self._is_closed = False
        os.set_blocking(fd, False)
        process.on_stdin = self._write
        process.on_stdin_end = self._end

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._loop.unwatch(self._fd)
            os.close(self._fd)

    def resize(self, cols: int, rows: int) -> None:
        if not self._is_closed:
            set_size(self._fd, cols, rows)

    def foreground_group(self) -> int | None:
        """Return the process group that the terminal's keys go to; None if the kernel does not say."""
        try:
            return os.tcgetpgrp(self._fd) or None
        except OSError:
            return None

    def _write(self, data: bytes) -> None:
        self._waiting += data
        self._flush()

    def _end(self) -> None:
        """Close the pipe once all is written; to a terminal, type Control-D."""
        if self._is_terminal:
            self._waiting += b"\x04"
        self._is_ending = True
        self._flush()

    def _ready(self, events: int) -> None:
        self._flush()

    def _flush(self) -> None:
        while self._waiting and not self._is_closed:
            try:
                count = os.write(self._fd, self._waiting[:65536])
            except BlockingIOError:
                self._loop.watch(self._fd, WRITE, self._ready)
                return
            except OSError:  # it closed its end, or has ended
                self.close()
                self._waiting.clear()
                self._process.stdin_closed()
                return
            del self._waiting[:count]
            is_control_d = self._is_terminal and self._is_ending and not self._waiting
            self._process.consumed(count - is_control_d)
        if not self._is_closed:
            self._loop.unwatch(self._fd)
            if self._is_ending and not self._is_terminal:
                self.close()


def open_terminal(uid: int, size: list[int]) -> tuple[int, int]:
    """Return both ends of a new terminal that belongs to `uid`."""
    master, theirs = os.openpty()
    try:
        set_size(master, *size)
        if os.getuid() == 0:
            os.fchown(theirs, uid, -1)
    except OSError:
        os.close(master)
        os.close(theirs)
        raise
    return master, theirs


def set_size(terminal: int, cols: int, rows: int) -> None:
    """Tell a terminal how large it is; the kernel tells its foreground group."""
    fcntl.ioctl(terminal, TIOCSWINSZ, _WINSIZE.pack(rows, cols, 0, 0))

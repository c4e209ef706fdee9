"""One process of a guest as this node sees it: output in order, acknowledged once delivered; stdin; its end."""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from space.core.errors import FailedPrecondition, GuestUnreachable, SpaceError
from space.core.ids import ProcessId
from space.node.guest_errors import guest_error
from space_guest.protocol import (
    CHUNK,
    OUTPUT_WINDOW,
    PTY,
    STDERR,
    STDIN_WINDOW,
    STDOUT,
    STREAM_NAMES,
    Kind,
    ProtocolError,
    decode_object,
    decode_offset,
    decode_output,
    encode_ack,
    encode_data,
    encode_offset,
)

MAX_PIECES = 1024
_REASONS = frozenset({"timeout", "killed", "oom", "lost"})
_SIGNAL = re.compile(r"SIG[A-Z0-9+]{1,12}")


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes that a process put out; `offset` is that of the first byte in its own stream."""

    process_id: ProcessId
    stream: str  #: `stdout`, `stderr` or `pty`
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Exited:
    """The end of a process: nothing follows.  Reason `lost`: the agent knows that it ended, but not how."""

    process_id: ProcessId
    exit_code: int | None
    signal: str | None
    reason: str | None
    stdout_bytes: int  #: of a process on a terminal: what the terminal showed
    stderr_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What an agent says of a process that it keeps."""

    process_id: ProcessId
    os_pid: int | None
    is_running: bool
    exit_code: int | None
    signal: str | None
    reason: str | None
    offsets: Mapping[str, int]  #: stream → bytes put out so far


Deliver = Callable[[Output | Exited], Awaitable[None]]


class ProcessChannel:
    """A process that is attached to this connection."""

    def __init__(
        self,
        process_id: ProcessId,
        *,
        is_terminal: bool | None,
        offsets: Mapping[str, int],
        deliver: Deliver,
        send: Callable[[bytes], None],
        room: Callable[[], Awaitable[None]],
        hold: Callable[[int], None],
        own: Callable[[Any], None],
    ) -> None:
        self.process_id = process_id
        self.number = 0
        self.started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._is_terminal = is_terminal
        self._received = {number: offsets.get(name, 0) for number, name in STREAM_NAMES.items()}
        self._acknowledged = dict(self._received)
        self._deliver = deliver
        self._send = send
        self._room = room
        self._hold = hold
        self._own = own
        self._pieces: deque[_Piece] = deque()
        self._exited: Exited | None = None
        self._is_delivering = False
        self._waiters: list[asyncio.Future[None]] = []
        self._stdin_lock = asyncio.Lock()
        self._stdin_sent = 0
        self._stdin_limit = STDIN_WINDOW
        self._is_stdin_open = False
        self._error: SpaceError | None = None

    # Frames

    def frame(self, kind: Kind, payload: bytes) -> bool:
        if kind is Kind.ERROR and not self.started.done():
            self.started.set_exception(guest_error(decode_object(payload), ""))
            self.started.exception()  # whoever waited may be gone
            return True
        if kind is Kind.STARTED and not self.started.done():
            self._start(decode_object(payload))
        elif not self.started.done() or self._exited is not None:
            raise ProtocolError(f"{kind.name} outside of a process's life")
        elif kind is Kind.OUTPUT:
            self._take(*decode_output(payload))
        elif kind is Kind.CREDIT:
            self._credit(decode_offset(payload))
        elif kind is Kind.END:
            self._is_stdin_open = False
            self._wake_writers()
        elif kind is Kind.EXITED:
            self._exit(decode_object(payload))
            return True
        else:
            raise ProtocolError(f"{kind.name} on a process")
        return False

    def lost(self, error: SpaceError) -> None:
        self._error = error
        if not self.started.done():
            self.started.set_exception(GuestUnreachable(error.message))
            self.started.exception()
        self._wake_writers()

    def _start(self, body: Mapping[str, Any]) -> None:
        os_pid, stdin_offset = natural(body, "os_pid"), natural(body, "stdin_offset")
        self._is_stdin_open = body.get("stdin") is True
        self._stdin_sent = stdin_offset
        self.started.set_result(os_pid)

    def _take(self, number: int, offset: int, data: bytes) -> None:
        if self._is_terminal is not None and (number == PTY) is not self._is_terminal:
            raise ProtocolError("output on a stream that the process does not have")
        if offset != self._received[number]:
            raise ProtocolError("output out of order")
        self._received[number] += len(data)
        if self._received[number] - self._acknowledged[number] > OUTPUT_WINDOW:
            raise ProtocolError("more output than may be unacknowledged")
        self._hold(len(data))
        self._append(number, offset, data)
        self._start_delivering()

    def _append(self, number: int, offset: int, data: bytes) -> None:
        """Queue output; beyond `MAX_PIECES` the interleaving of the streams is given up to keep memory flat."""
        tail = self._pieces[-1] if self._pieces else None
        if len(self._pieces) >= MAX_PIECES:
            tail = next((piece for piece in reversed(self._pieces) if piece.number == number), None)
        if tail is not None and tail.number == number:
            tail.data += data
        else:
            self._pieces.append(_Piece(number, offset, bytearray(data)))

    def _exit(self, body: Mapping[str, Any]) -> None:
        totals = body.get("offsets")
        expected = {STREAM_NAMES[number]: count for number, count in self._received.items()}
        if not isinstance(totals, dict) or not totals or not set(totals) <= set(expected):
            raise ProtocolError("an end without totals")
        if any(expected[name] != totals.get(name, 0) for name in expected):
            raise ProtocolError("the totals of an ended process differ from its output")
        exit_code, signal, reason = ending(body)
        self._exited = Exited(
            self.process_id,
            exit_code,
            signal,
            reason,
            self._received[STDOUT] + self._received[PTY],
            self._received[STDERR],
        )
        self._is_stdin_open = False
        self._wake_writers()
        self._start_delivering()

    # Delivery

    def _start_delivering(self) -> None:
        if not self._is_delivering:
            self._is_delivering = True
            self._own(self._deliver_all())

    async def _deliver_all(self) -> None:
        while self._pieces:
            piece = self._pieces[0]
            data = bytes(piece.data[:CHUNK])
            offset = piece.offset
            del piece.data[:CHUNK]
            piece.offset += len(data)
            if not piece.data:
                self._pieces.popleft()
            await self._deliver(Output(self.process_id, STREAM_NAMES[piece.number], offset, data))
            self._hold(-len(data))
            self._acknowledged[piece.number] = offset + len(data)
            self._send(encode_ack(self.number, piece.number, offset + len(data)))
        self._is_delivering = False
        if self._exited is not None:
            await self._deliver(self._exited)

    # Stdin

    def _credit(self, limit: int) -> None:
        if limit > self._stdin_sent + STDIN_WINDOW:
            raise ProtocolError("credit for stdin that was never sent")
        self._stdin_limit = max(self._stdin_limit, limit)
        self._wake_writers()

    def _wake_writers(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def write_stdin(self, data: bytes) -> None:
        """Return once the process's pipe has taken all of `data`."""
        async with self._stdin_lock:
            view = memoryview(data)
            while view:
                await self._room()
                await self._until(lambda: self._is_stdin_open and self._stdin_sent < self._stdin_limit)
                piece = bytes(view[: min(CHUNK, self._stdin_limit - self._stdin_sent)])
                self._send(encode_data(self.number, self._stdin_sent, piece))
                self._stdin_sent += len(piece)
                view = view[len(piece) :]
            await self._until(lambda: self._stdin_limit - STDIN_WINDOW >= self._stdin_sent)

    async def close_stdin(self) -> None:
        async with self._stdin_lock:
            if self._is_stdin_open and self._error is None:
                self._is_stdin_open = False
                self._send(encode_offset(Kind.END, self.number, self._stdin_sent))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while True:
            if is_so():  # first: what was typed may have ended the process
                return
            if self._error is not None:
                raise GuestUnreachable(self._error.message)
            if not self._is_stdin_open:
                raise FailedPrecondition("the process takes no stdin: it has none, it is closed, or the process ended")
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)


@dataclass(slots=True)
class _Piece:
    number: int
    offset: int
    data: bytearray


def natural(body: Mapping[str, Any], name: str) -> int:
    """Return a field that must be an integer of 0 or more."""
    value = body.get(name)
    if type(value) is not int or not 0 <= value < 2**63:
        raise ProtocolError(f"{name} is no natural number")
    return value


def ending(body: Mapping[str, Any]) -> tuple[int | None, str | None, str | None]:
    """Return exit code, signal and reason, which must make sense together."""
    exit_code, signal, reason = body.get("exit_code"), body.get("signal"), body.get("reason")
    if reason is not None and not (isinstance(reason, str) and reason in _REASONS):
        raise ProtocolError("an unknown reason")
    if exit_code is not None and not (type(exit_code) is int and 0 <= exit_code <= 255):
        raise ProtocolError("an impossible exit code")
    if signal is not None and not (isinstance(signal, str) and _SIGNAL.fullmatch(signal)):
        raise ProtocolError("an impossible signal")
    if (exit_code is None) + (signal is None) != (2 if reason == "lost" else 1):
        raise ProtocolError("an end that is neither an exit nor a signal")
    return exit_code, signal, reason


def status(body: object) -> ProcessStatus:
    """Return an entry of `processes`."""
    if not isinstance(body, dict):
        raise ProtocolError("a process is an object")
    process_id, offsets, running = body.get("process_id"), body.get("offsets"), body.get("running")
    if not isinstance(process_id, str) or not isinstance(offsets, dict) or type(running) is not bool:
        raise ProtocolError("a process without id, offsets or state")
    if not set(offsets) <= set(STREAM_NAMES.values()):
        raise ProtocolError("an unknown stream")
    exit_code, signal, reason = (None, None, None) if running else ending(body)
    return ProcessStatus(
        ProcessId(process_id[:64]),
        None if body.get("os_pid") is None else natural(body, "os_pid"),
        running,
        exit_code,
        signal,
        reason,
        {name: natural(offsets, name) for name in offsets},
    )

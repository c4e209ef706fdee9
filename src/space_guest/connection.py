"""The agent's end of one connection: authenticate, then dispatch frames.  No system calls: bytes in, bytes out.

The real agent feeds it from a socket; `space.testing` from memory, so both speak the protocol with the same code.
"""

from __future__ import annotations

from space_guest.handshake import AgentHandshake
from space_guest.process import Process
from space_guest.protocol import (
    FROM_NODE,
    STDIN_WINDOW,
    VERSION,
    Decoder,
    Kind,
    ProtocolError,
    decode_ack,
    decode_data,
    decode_object,
    decode_offset,
    encode_object,
    encode_offset,
    encode_output,
)
from space_guest.request import Refused, Request

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs 5 ms at start
    from typing import Any

    from space_guest.ports import Link, Services

MAX_REQUESTS = 4096


class Connection:
    """Frames of one connection."""

    def __init__(self, link: Link, services: Services, token: str) -> None:
        self.link = link
        self.requests: dict[int, Request] = {}
        self.is_authenticated = False
        self.is_lost = False
        self._services = services
        self._handshake = AgentHandshake(token)
        self._decoder = Decoder(frozenset({Kind.HELLO}))
        self._processes: dict[int, Process] = {}
        self._waiting: dict[int, Process] = {}  # in the order in which they found no room
        self._last_channel = 0

    def feed(self, data: bytes) -> None:
        """Take bytes from the node; raises `ProtocolError`, after which the owner calls `lost`."""
        for kind, channel, payload in self._decoder.feed(data):
            if self.is_authenticated:
                self._dispatch(kind, channel, payload)
            else:
                self._greet(kind, payload)
            if self.is_lost:
                return

    def lost(self) -> None:
        """The link is gone: requests are cancelled, processes run on and keep their output."""
        if self.is_lost:
            return
        self.is_lost = True
        for process in self._processes.values():
            process.connection = None
        for request in list(self.requests.values()):
            request.on_cancel()
        self._processes.clear()
        self._waiting.clear()
        self.requests.clear()
        self.link.close()

    def room(self) -> None:
        """The link has room again: let each waiting process send a chunk in turn."""
        while self._waiting and self.link.has_room:
            channel = next(iter(self._waiting))
            process = self._waiting.pop(channel)
            if self._send_some(process):
                self._waiting[channel] = process
            else:
                self._sent(process)

    # Authentication

    def _greet(self, kind: Kind, payload: bytes) -> None:
        if kind is Kind.HELLO:
            self._decoder.accepts = frozenset({Kind.PROOF})
            self.link.write(self._handshake.challenge(payload))
            return
        self._handshake.verify(payload)
        self.is_authenticated = True
        self._decoder.accepts = FROM_NODE - {Kind.HELLO, Kind.PROOF}
        self._services.authenticated(self)
        self.link.write(encode_object(Kind.WELCOME, 0, {"version": VERSION, "boot_id": self._services.boot_id}))

    # Frames

    def _dispatch(self, kind: Kind, channel: int, payload: bytes) -> None:
        if kind is Kind.REQUEST:
            self._start(channel, decode_object(payload))
        elif kind is Kind.ACK:
            if (process := self._processes.get(channel)) is not None:
                process.acknowledge(*decode_ack(payload))
        elif channel in self._processes:
            self._dispatch_stdin(self._processes[channel], kind, payload)
        elif channel in self.requests:
            self._dispatch_bytes(self.requests[channel], kind, payload)
        elif channel == 0 or channel > self._last_channel:
            raise ProtocolError("a frame for a channel that was never opened")
        # else: it crossed with this channel's final frame

    def _dispatch_stdin(self, process: Process, kind: Kind, payload: bytes) -> None:
        if kind is Kind.DATA:
            process.receive_stdin(*decode_data(payload))
        elif kind is Kind.END:
            process.receive_stdin_end(decode_offset(payload))
        else:
            raise ProtocolError(f"{kind.name} may not be sent to a process")

    def _dispatch_bytes(self, request: Request, kind: Kind, payload: bytes) -> None:
        if kind is Kind.DATA:
            request.receive_data(*decode_data(payload))
        elif kind is Kind.END:
            request.receive_end(decode_offset(payload))
        elif kind is Kind.CREDIT:
            request.receive_credit(decode_offset(payload))
        elif kind is Kind.CANCEL:
            request.on_cancel()
            request.fail(Refused("cancelled"))

    def _start(self, channel: int, args: dict[str, Any]) -> None:
        if channel <= self._last_channel or len(self.requests) >= MAX_REQUESTS:
            raise ProtocolError("a channel was used twice, or too many are open")
        self._last_channel = channel
        op = args.pop("op", None)
        request = Request(self, channel, args)
        self.requests[channel] = request
        try:
            if op in ("spawn", "attach"):
                self._bind(op, request)
            elif isinstance(op, str):
                self._services.handle(op, request)
            else:
                raise Refused("invalid_request", "a request needs an op")
        except Refused as refused:
            request.fail(refused)

    # Processes

    def _bind(self, op: str, request: Request) -> None:
        process_id, offsets = request.args.pop("process_id", None), request.args.pop("offsets", {})
        if not isinstance(process_id, str) or not isinstance(offsets, dict):
            raise Refused("invalid_request", "process_id and offsets are needed")
        process = self._services.find(process_id)
        if process is None:
            if op == "attach":
                raise Refused("not_found", "there is no such process")
            process = self._services.spawn(process_id, request.args)
        if process.connection is not None:
            raise Refused("conflict", "the process is attached already")
        if not process.rewind(offsets):
            raise Refused("failed_precondition", "output from there is gone", **process.describe())
        del self.requests[request.channel]
        process.connection, process.channel = self, request.channel
        self._processes[request.channel] = process
        if process.os_pid is not None:
            self.process_started(process)

    def process_started(self, process: Process) -> None:
        body = {"os_pid": process.os_pid, "stdin_offset": process.stdin_received, "stdin": process.is_stdin_open}
        self.link.write(encode_object(Kind.STARTED, process.channel, body))
        if process.stdin_written:
            self.stdin_credit(process)
        self.pump(process)

    def process_failed(self, process: Process, exit_code: int, message: str) -> None:
        """It could not be started: final."""
        refused = Refused("spawn_failed", message, exit_code=exit_code)
        self.link.write(encode_object(Kind.ERROR, process.channel, refused.body))
        self.release(process)

    def pump(self, process: Process) -> None:
        """Send what the process has put out, as far as there is room; then its end."""
        if process.channel in self._waiting or process.os_pid is None:
            return
        while self.link.has_room:
            if not self._send_some(process):
                self._sent(process)
                return
        self._waiting[process.channel] = process

    def _send_some(self, process: Process) -> bool:
        """Send one chunk of each stream; False once nothing is left."""
        left = False
        for stream in process.streams.values():
            if (piece := stream.take()) is not None:
                self.link.write(encode_output(process.channel, stream.number, *piece))
                left = True
        return left

    def _sent(self, process: Process) -> None:
        if process.ended is not None and process.connection is self:
            self.link.write(encode_object(Kind.EXITED, process.channel, process.describe()))
            # It stays bound: the node acknowledges the last bytes after this frame.

    def release(self, process: Process) -> None:
        """The node is done with the process."""
        if process.connection is self:
            self._processes.pop(process.channel, None)
            self._waiting.pop(process.channel, None)
            process.connection = None

    def stdin_credit(self, process: Process) -> None:
        self.link.write(encode_offset(Kind.CREDIT, process.channel, process.stdin_written + STDIN_WINDOW))

    def stdin_refused(self, process: Process) -> None:
        self.link.write(encode_offset(Kind.END, process.channel, process.stdin_written))

"""Frames between a node and a guest agent: one definition for both ends.

    frame = kind u8 | channel u32 | length u32 | payload

A channel is a request's number, chosen by the node and used once.  Every request gets exactly one final frame
(`REPLY`, `ERROR` or `EXITED`), cancelled ones too.  Bytes travel in `DATA` (files, stdin) and `OUTPUT` (a process);
both carry the absolute offset of their first byte, so nothing can be lost or doubled unnoticed.  A sender of `DATA`
keeps below the absolute limit that the receiver's last `CREDIT` gave (at first the window below); an agent keeps at
most `OUTPUT_WINDOW` bytes that the node has not acknowledged, and sends no more.

| kind | from | payload |
|---|---|---|
| HELLO, CHALLENGE, PROOF, WELCOME | node, agent, node, agent | `handshake.py` |
| REQUEST | node | object with `op`; starts a channel |
| CANCEL | node | empty |
| DATA | both | offset u64, bytes |
| END | both | offset u64: nothing follows; from the agent on a process: stdin takes no more |
| CREDIT | both | limit u64 |
| OPENED | agent | object: what the bytes that follow belong to |
| REPLY | agent | object; final |
| ERROR | agent | object with `code`; final |
| STARTED | agent | object with `os_pid`, `stdin_offset` |
| OUTPUT | agent | stream u8, offset u64, bytes |
| ACK | node | stream u8, offset u64: everything before it is journalled |
| EXITED | agent | object; final |

Each end refuses kinds that the other may not send, and sizes over the kind's limit, before it buffers anything.
Standard library only, Python 3.11: this file also runs inside guests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import IntEnum
from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs 5 ms at start
    from typing import Any

VERSION = 1
HEADER = Struct("!BII")
OFFSET = Struct("!Q")
STREAM_OFFSET = Struct("!BQ")

CHUNK = 256 * 1024  #: most bytes of content in one frame
OUTPUT_WINDOW = 1024 * 1024  #: unacknowledged bytes of one output stream
FILE_WINDOW = 1024 * 1024  #: bytes of one file transfer that the receiver has not asked for yet
STDIN_WINDOW = 256 * 1024
MAX_OBJECT = 2 * 1024 * 1024  #: holds 256 KiB of argv even where JSON escapes each byte sixfold
MAX_CHANNEL = 2**32 - 1

STDOUT, STDERR, PTY = 1, 2, 3
STREAM_NAMES: Mapping[int, str] = {STDOUT: "stdout", STDERR: "stderr", PTY: "pty"}
STREAM_NUMBERS: Mapping[str, int] = {name: number for number, name in STREAM_NAMES.items()}


class Kind(IntEnum):
    """What a frame is; see the module's table."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REQUEST = 10
    CANCEL = 11
    DATA = 12
    END = 13
    CREDIT = 14
    OPENED = 20
    REPLY = 21
    ERROR = 22
    STARTED = 30
    OUTPUT = 31
    ACK = 32
    EXITED = 33


#: kind → least and most bytes of payload
SIZES: Mapping[Kind, tuple[int, int]] = {
    Kind.HELLO: (1, 128),
    Kind.CHALLENGE: (1, 128),
    Kind.PROOF: (1, 128),
    Kind.WELCOME: (2, 4096),
    Kind.REQUEST: (2, MAX_OBJECT),
    Kind.CANCEL: (0, 0),
    Kind.DATA: (OFFSET.size + 1, OFFSET.size + CHUNK),
    Kind.END: (OFFSET.size, OFFSET.size),
    Kind.CREDIT: (OFFSET.size, OFFSET.size),
    Kind.OPENED: (2, 65536),
    Kind.REPLY: (2, MAX_OBJECT),
    Kind.ERROR: (2, 4096),
    Kind.STARTED: (2, 4096),
    Kind.OUTPUT: (STREAM_OFFSET.size + 1, STREAM_OFFSET.size + CHUNK),
    Kind.ACK: (STREAM_OFFSET.size, STREAM_OFFSET.size),
    Kind.EXITED: (2, 4096),
}
FROM_NODE = frozenset({Kind.HELLO, Kind.PROOF, Kind.REQUEST, Kind.CANCEL, Kind.DATA, Kind.END, Kind.CREDIT, Kind.ACK})
FROM_AGENT = frozenset(
    {Kind.CHALLENGE, Kind.WELCOME, Kind.OPENED, Kind.REPLY, Kind.ERROR, Kind.STARTED, Kind.OUTPUT, Kind.EXITED}
) | {Kind.DATA, Kind.END, Kind.CREDIT}

Frame = tuple[Kind, int, bytes]


class ProtocolError(Exception):
    """The other end broke the protocol; the connection cannot go on."""


def encode(kind: Kind, channel: int, *parts: bytes) -> bytes:
    """Return one frame; raises `ValueError` if it would be refused by the other end."""
    length = sum(map(len, parts))
    least, most = SIZES[kind]
    if not least <= length <= most:
        raise ValueError(f"a {kind.name} frame holds {least} to {most} bytes, not {length}")
    return b"".join((HEADER.pack(kind, channel, length), *parts))


def encode_data(channel: int, offset: int, data: bytes) -> bytes:
    """Return a `DATA` frame."""
    return encode(Kind.DATA, channel, OFFSET.pack(offset), data)


def encode_offset(kind: Kind, channel: int, offset: int) -> bytes:
    """Return an `END` or `CREDIT` frame."""
    return encode(kind, channel, OFFSET.pack(offset))


def encode_output(channel: int, stream: int, offset: int, data: bytes) -> bytes:
    """Return an `OUTPUT` frame."""
    return encode(Kind.OUTPUT, channel, STREAM_OFFSET.pack(stream, offset), data)


def encode_ack(channel: int, stream: int, offset: int) -> bytes:
    """Return an `ACK` frame."""
    return encode(Kind.ACK, channel, STREAM_OFFSET.pack(stream, offset))


def encode_object(kind: Kind, channel: int, value: Mapping[str, Any]) -> bytes:
    """Return a frame whose payload is a JSON object."""
    return encode(kind, channel, json.dumps(value, separators=(",", ":"), allow_nan=False).encode())


def decode_data(payload: bytes) -> tuple[int, bytes]:
    """Return offset and bytes of a `DATA` frame."""
    return OFFSET.unpack_from(payload)[0], payload[OFFSET.size :]


def decode_offset(payload: bytes) -> int:
    """Return what an `END` or `CREDIT` frame holds."""
    offset: int = OFFSET.unpack(payload)[0]
    return offset


def decode_output(payload: bytes) -> tuple[int, int, bytes]:
    """Return stream, offset and bytes of an `OUTPUT` frame."""
    stream, offset = STREAM_OFFSET.unpack_from(payload)
    if stream not in STREAM_NAMES:
        raise ProtocolError(f"there is no output stream {stream}")
    return stream, offset, payload[STREAM_OFFSET.size :]


def decode_ack(payload: bytes) -> tuple[int, int]:
    """Return stream and offset of an `ACK` frame."""
    stream, offset = STREAM_OFFSET.unpack(payload)
    return stream, offset


def decode_object(payload: bytes) -> dict[str, Any]:
    """Return the JSON object of a payload; anything else is a `ProtocolError`."""
    try:
        value = json.loads(payload.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a payload is not JSON") from error
    if not isinstance(value, dict):
        raise ProtocolError("a payload is not a JSON object")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


class Decoder:
    """Cuts a byte stream into frames; holds at most one unfinished frame plus what was fed last."""

    def __init__(self, accepts: frozenset[Kind]) -> None:
        self.accepts = accepts
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield each frame that is now complete; raises `ProtocolError` at the first byte that cannot be right."""
        self._buffer += data
        position = 0
        try:
            while (frame := self._next(position)) is not None:
                position += HEADER.size + len(frame[2])
                yield frame
        finally:
            del self._buffer[:position]

    def _next(self, position: int) -> Frame | None:
        if len(self._buffer) - position < HEADER.size:
            return None
        number, channel, length = HEADER.unpack_from(self._buffer, position)
        try:
            kind = Kind(number)
        except ValueError:
            raise ProtocolError(f"there is no frame of kind {number}") from None
        if kind not in self.accepts:
            raise ProtocolError(f"{kind.name} may not be sent here")
        least, most = SIZES[kind]
        if not least <= length <= most:
            raise ProtocolError(f"a {kind.name} frame holds {least} to {most} bytes, not {length}")
        start = position + HEADER.size
        if len(self._buffer) - start < length:
            return None
        return kind, channel, bytes(memoryview(self._buffer)[start : start + length])

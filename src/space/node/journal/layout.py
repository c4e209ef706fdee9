"""How a journal's bytes lie in its file.  Pure: no I/O.

A journal is a sequence of records, and a journal offset (the SSE id) is an offset in this file:

    kind u8 | length u32 | stream offset u64 | payload of `length` bytes        all big endian

The file is divided into blocks of 256 KiB that no record crosses: output is split at the border, anything else is
preceded by padding (zero bytes).  So whoever knows an offset finds a record's border nearby in a file of any size:
recovery, checking a reader's offset and resuming in the middle each read one block.  Kinds with the high bit are the
file's own and are not shown to readers:

* `HEAD` opens the first block: JSON that names session, process, sandbox and generation.  Its stream offset field
  holds the start of the oldest block that the size limit left, or 0; the first block itself is never removed.
* `BLOCK` opens every other block: three u64, how much stdout, stderr and pty output comes before the block.

A record whose end lies beyond the end of the file was torn by a crash; recovery cuts it off, and the guest agent
sends its bytes again.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from space.core.journal import JournalRecord, RecordKind

BLOCK_SIZE = 256 * 1024
RECORD = struct.Struct(">BIQ")
OFFSETS = struct.Struct(">QQQ")
PADDING = 0
HEAD = 0x80
BLOCK = 0x81
OLDEST_AT = 5  #: where the head's stream offset field lies in the file
MAX_EVENT_BYTES = 64 * 1024  #: payload of a record that may not be split
_WORTH_SPLITTING = 1024  #: less room than this before a border is padded rather than filled

_KINDS = {int(kind): kind for kind in RecordKind}
STREAMS = {RecordKind.STDOUT: 0, RecordKind.STDERR: 1, RecordKind.PTY: 2}


class Damaged(Exception):
    """The bytes at this offset are no record; whatever wrote them, it was not a journal."""


def block_of(position: int) -> int:
    """Return the start of the block that holds the byte at `position`."""
    return position - position % BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Encoded:
    """Buffers to write at a journal's end, and what is true once they are written."""

    buffers: list[bytes | memoryview]
    end: int
    written: tuple[int, int, int]  #: bytes of stdout, stderr and pty so far


def encode(
    end: int, written: tuple[int, int, int], kind: RecordKind, stream_offset: int, payload: bytes | memoryview
) -> Encoded:
    """Lay out one record, in parts if it crosses a border."""
    stream = STREAMS.get(kind)
    if stream is None and len(payload) > MAX_EVENT_BYTES:
        raise ValueError(f"a {kind.name} record holds at most {MAX_EVENT_BYTES} bytes")
    rest = memoryview(payload)
    counts = list(written)
    buffers: list[bytes | memoryview] = []
    while True:
        room = BLOCK_SIZE - end % BLOCK_SIZE
        if room < RECORD.size + len(rest) and (stream is None or room < _WORTH_SPLITTING):
            buffers.append(bytes(room))
            end += room
            room = BLOCK_SIZE
        if room == BLOCK_SIZE:
            buffers += (RECORD.pack(BLOCK, OFFSETS.size, 0), OFFSETS.pack(*counts))
            end += RECORD.size + OFFSETS.size
            room -= RECORD.size + OFFSETS.size
        part = rest[: room - RECORD.size]
        buffers += (RECORD.pack(kind, len(part), stream_offset), part)
        end += RECORD.size + len(part)
        stream_offset += len(part)
        if stream is not None:
            counts[stream] += len(part)
        elif kind is RecordKind.ROLLED_BACK:
            counts = list(rolled_back_to(payload))
        rest = rest[len(part) :]
        if not rest:
            return Encoded(buffers, end, (counts[0], counts[1], counts[2]))


def rolled_back_to(payload: bytes | memoryview) -> tuple[int, int, int]:
    """Return from where stdout, stderr and pty go on after a `ROLLED_BACK` record; raises ValueError."""
    try:
        found = json.loads(bytes(payload))
        pty = int(found.get("pty_offset", 0))
        return 0 if pty else int(found["stdout_offset"]), int(found["stderr_offset"]), pty
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("not the offsets of a moment") from error


def encode_head(payload: bytes) -> bytes:
    """Return the first bytes of a new journal."""
    return RECORD.pack(HEAD, len(payload), 0) + payload


def holds_head(data: bytes) -> bool:
    """Whether a file's beginning is a whole head: it is written first and at once, so a crash leaves less of it."""
    if len(data) < RECORD.size:
        return False
    kind, length, _ = RECORD.unpack_from(data, 0)
    is_whole: bool = kind == HEAD and RECORD.size + length <= len(data)
    return is_whole


def decode(data: bytes | bytearray | memoryview, position: int) -> Iterator[JournalRecord]:
    """Yield the whole records in `data`, bytes of one block from a record's start at `position` on.

    Stops before a record that `data` does not hold to its end.  Raises `Damaged` at what cannot be a record.
    """
    view = memoryview(data)
    at, size, border = 0, len(view), BLOCK_SIZE - position % BLOCK_SIZE
    while at + RECORD.size <= size:
        kind, length, stream_offset = RECORD.unpack_from(view, at)
        if kind == PADDING:
            return
        after = at + RECORD.size + length
        if after > border or (kind not in _KINDS and kind not in (HEAD, BLOCK)):
            raise Damaged(position + at)
        if after > size:
            return
        known = _KINDS.get(kind)
        if known is not None:
            yield JournalRecord(position + after, known, stream_offset, bytes(view[at + RECORD.size : after]))
        at = after


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """Where the whole records of a block end, what had been written by then, and the last visible record."""

    end: int
    written: tuple[int, int, int]
    last: JournalRecord | None


def measure(data: bytes, position: int) -> BlockEnd:
    """Find the end of the whole records in a block read from its start at `position`; raises `Damaged` if none is."""
    if len(data) < RECORD.size:
        raise Damaged(position)
    kind, length, _ = RECORD.unpack_from(data, 0)
    first = RECORD.size + length
    if first > len(data) or kind != (BLOCK if position else HEAD) or (position and length != OFFSETS.size):
        raise Damaged(position)
    counts = list(OFFSETS.unpack_from(data, RECORD.size)) if position else [0, 0, 0]
    end, last = position + first, None
    try:
        for record in decode(memoryview(data)[first:], end):
            end, last = record.position, record
            if record.kind in STREAMS:
                counts[STREAMS[record.kind]] += len(record.payload)
            elif record.kind is RecordKind.ROLLED_BACK:
                counts = list(rolled_back_to(record.payload))
    except (Damaged, ValueError):
        pass  # what follows the last good record is cut off like a torn one
    return BlockEnd(end, (counts[0], counts[1], counts[2]), last)


def is_border(data: bytes | memoryview, position: int, wanted: int) -> bool:
    """Whether a record ends at `wanted`, within the block `data` that starts at `position`."""
    at = 0
    while position + at < wanted and at + RECORD.size <= len(data):
        kind, length, _ = RECORD.unpack_from(data, at)
        if kind == PADDING:
            return False
        at += RECORD.size + length
    return position + at == wanted

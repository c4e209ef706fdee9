"""From journal records to SSE frames, and to plain bytes.

Output is framed by joining bytes: at 60 MB/s a JSON encoder's walk over each payload would be the largest cost.
Base64 needs no escaping, so the JSON around it is constant.
"""

import binascii
import codecs
from collections.abc import Mapping
from typing import Protocol

import orjson

from space.core.journal import JournalRecord, RecordKind, Trimmed

NAMES: Mapping[RecordKind, bytes] = {
    RecordKind.PROCESS_STARTED: b"process_started",
    RecordKind.STDOUT: b"stdout",
    RecordKind.STDERR: b"stderr",
    RecordKind.PTY: b"pty",
    RecordKind.PROCESS_EXITED: b"process_exited",
    RecordKind.SANDBOX_LOST: b"sandbox_lost",
    RecordKind.ROLLED_BACK: b"rolled_back",
}
_HEADS = {kind: b"\nevent: " + name + b'\ndata: {"data":"' for kind, name in NAMES.items()}


class Framing(Protocol):
    """Turns what a journal tells into bytes for one reader."""

    media_type: str
    keep_alive: bytes

    def __call__(self, item: JournalRecord | Trimmed) -> bytes:
        """Return the bytes for one item; empty if this reader did not ask for it."""
        ...


class Base64Frames:
    """SSE as the contract has it: `id` is the journal offset after the record, output is base64."""

    media_type = "text/event-stream"
    keep_alive = b": keep-alive\n\n"

    def __init__(self, only: RecordKind | None = None) -> None:
        self._only = only

    def __call__(self, item: JournalRecord | Trimmed) -> bytes:
        if isinstance(item, Trimmed):
            return _trimmed(item)
        kind = item.kind
        if not kind.is_output:
            return _told(item)
        if self._only is not None and kind is not self._only:
            return b""
        encoded = binascii.b2a_base64(item.payload, newline=False)
        return b'id: %d%b%b","offset":%d}\n\n' % (item.position, _HEADS[kind], encoded, item.stream_offset)


class TextFrames:
    """SSE with output as text, for readers that only want to show it.

    A character that two records share is shown with the second; bytes that are no UTF-8 become U+FFFD.  A reader
    that comes back between the two sees U+FFFD, too: whoever needs exact bytes reads base64.
    """

    media_type = "text/event-stream"
    keep_alive = b": keep-alive\n\n"

    def __init__(self, only: RecordKind | None = None) -> None:
        self._only = only
        self._decoders: dict[RecordKind, codecs.IncrementalDecoder] = {}

    def __call__(self, item: JournalRecord | Trimmed) -> bytes:
        if isinstance(item, Trimmed):
            self._decoders.clear()
            return _trimmed(item)
        kind = item.kind
        if not kind.is_output:
            return self._rest(item) + _told(item)
        if self._only is not None and kind is not self._only:
            return b""
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = codecs.getincrementaldecoder("utf-8")("replace")
        return self._frame(item.position, kind, decoder.decode(item.payload), item.stream_offset)

    def _rest(self, item: JournalRecord) -> bytes:
        if not item.kind.is_final:
            return b""
        rests = [(kind, decoder.decode(b"", True)) for kind, decoder in self._decoders.items()]
        return b"".join(self._frame(item.position, kind, text, 0) for kind, text in rests if text)

    @staticmethod
    def _frame(position: int, kind: RecordKind, text: str, offset: int) -> bytes:
        data = orjson.dumps({"data": text, "offset": offset})
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (position, NAMES[kind], data)


class PlainBytes:
    """Nothing but the bytes of one stream: for pipes, not for programs that need to know how it ended."""

    media_type = "application/octet-stream"
    keep_alive = b""

    def __init__(self, only: RecordKind | None = None) -> None:
        self._only = only

    def __call__(self, item: JournalRecord | Trimmed) -> bytes:
        if isinstance(item, Trimmed) or not item.kind.is_output:
            return b""
        return item.payload if self._only is None or item.kind is self._only else b""


def _told(record: JournalRecord) -> bytes:
    """Frame a record that holds a JSON object already, written by the node without line breaks."""
    payload = record.payload
    if b"\n" in payload or b"\r" in payload:  # a line break would end the field
        payload = orjson.dumps(orjson.loads(payload))
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (record.position, NAMES[record.kind], payload)


def _trimmed(item: Trimmed) -> bytes:
    return b'id: %d\nevent: resync_required\ndata: {"oldest_offset":%d}\n\n' % (
        item.oldest_position,
        item.oldest_position,
    )

"""A parser of server-sent events that does no I/O: bytes in, frames out.

Written for streams of output, where a frame is up to some 100 KB of base64: it cuts at blank lines and never looks
at single bytes.  Lines may end in LF, CRLF or CR, as the HTML standard (§9.2.6) wants.
"""

from collections.abc import Iterator
from dataclasses import dataclass

MAX_FRAME = 64 << 20  #: no server of ours sends a frame near this; a stream without blank lines must not eat memory


class FrameTooLargeError(ValueError):
    """A frame of more than `MAX_FRAME` bytes: this is not an event stream of SPACE."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as sent.  `id` is None if the frame had none; `data` is its lines joined by LF."""

    event: str
    data: bytes
    id: str | None = None


class FrameParser:
    """Give it what arrives, in pieces of any size; it returns the frames completed by each piece.

    An unfinished frame at the end of the stream is dropped, as the standard asks: a reconnect gets it whole.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0  # how much of `_rest` is known to hold no blank line
        self._after_cr = False  # the last piece ended in CR: a LF that follows belongs to it
        self._at_start = True  # of the stream, where a byte order mark may stand

    def feed(self, piece: bytes) -> Iterator[Frame]:
        """Yield the frames that `piece` completes; exhaust the iterator before the next call."""
        if self._after_cr or b"\r" in piece:
            piece = self._with_line_feeds(piece)
        rest = self._rest
        rest += piece
        if self._at_start and not self._drop_mark():
            return
        start = 0
        end = rest.find(b"\n\n", self._searched)
        while end >= 0:
            frame = parse_frame(rest, start, end)
            if frame is not None:
                yield frame
            start = end + 2
            end = rest.find(b"\n\n", start)
        if start:
            del rest[:start]
        self._searched = max(len(rest) - 1, 0)
        if len(rest) > MAX_FRAME:
            raise FrameTooLargeError(f"a frame of more than {MAX_FRAME} bytes")

    def _with_line_feeds(self, piece: bytes) -> bytes:
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
            self._after_cr = False
        if not piece:
            return piece
        self._after_cr = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _drop_mark(self) -> bool:
        """Remove a byte order mark; False while too little has arrived to tell."""
        mark = b"\xef\xbb\xbf"
        if len(self._rest) < len(mark) and mark.startswith(self._rest):
            return False
        if self._rest.startswith(mark):
            del self._rest[: len(mark)]
        self._at_start = False
        return True


def parse_frame(text: bytes | bytearray, start: int = 0, end: int | None = None) -> Frame | None:
    """Parse the lines of one frame, `text[start:end]`; None for one that dispatches nothing, such as a comment."""
    end = len(text) if end is None else end
    event, identifier = "message", None
    data: list[bytes] = []
    while start <= end:
        stop = text.find(b"\n", start, end)
        if stop < 0:
            stop = end
        if text.startswith(b"data: ", start, stop):  # the usual line, whose value is copied just this once
            data.append(bytes(memoryview(text)[start + 6 : stop]))
        else:
            name, _, value = bytes(text[start:stop]).partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            elif name == b"event":
                event = value.decode("utf-8", "replace")
            elif name == b"id" and b"\0" not in value:
                identifier = value.decode("utf-8", "replace")
        start = stop + 1
    if not data:
        return None
    return Frame(event, data[0] if len(data) == 1 else b"\n".join(data), identifier)

"""What one call keeps of a command's output: its head and its tail; the journal has the rest."""

from collections import deque

from space.core.errors import InvalidRequest

MAX_KEPT_BYTES = 16 << 20  # of one stream in one answer: it is held in memory


def check_limit(max_output_bytes: int) -> None:
    """Raise `InvalidRequest` unless the limit is one that an answer can hold."""
    if not 0 <= max_output_bytes <= MAX_KEPT_BYTES:
        raise InvalidRequest(
            f"max_output_bytes is 0 to {MAX_KEPT_BYTES}; read longer output from the session's events",
            field="max_output_bytes",
            limit=MAX_KEPT_BYTES,
        )


class HeadAndTail:
    """Takes a stream of any length in bounded memory and keeps its first and last bytes.

    While no more than `limit` bytes came, all are kept.  After that the first and the last half of the limit are,
    cut back to whole UTF-8 characters, with a line between them that says what is missing.
    """

    def __init__(self, limit: int) -> None:
        self._head_limit = limit - limit // 2
        self._tail_limit = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.total = 0  #: bytes that the stream had

    @property
    def is_truncated(self) -> bool:
        return self.total > len(self._head) + min(self._tail_size, self._tail_limit)

    def add(self, data: bytes, *, offset: int | None = None) -> None:
        """Take the stream's next bytes; an `offset` beyond the last ones tells of bytes that nobody has any more."""
        if offset is not None and offset > self.total:
            self._head_limit = len(self._head)
            self._tail.clear()
            self._tail_size = 0
            self.total = offset
        self.total += len(data)
        if (room := self._head_limit - len(self._head)) > 0:
            self._head += data[:room]
            data = data[room:]
        if not data or not self._tail_limit:
            return
        self._tail.append(data[-self._tail_limit :])
        self._tail_size += len(self._tail[-1])
        while self._tail_size - len(self._tail[0]) >= self._tail_limit:
            self._tail_size -= len(self._tail.popleft())
        if len(self._tail) > 4096:  # many small writes: an object each would outweigh their bytes
            self._tail = deque([b"".join(self._tail)])

    def value(self, *, session_id: str) -> bytes:
        """Return what is kept; where something is missing, a line says how much and which session has it."""
        tail = b"".join(self._tail)
        if not self.is_truncated:
            return bytes(self._head) + tail
        tail = tail[-self._tail_limit :] if self._tail_limit else b""
        head = _whole_at_end(bytes(self._head))
        tail = _whole_at_start(tail)
        missing = self.total - len(head) - len(tail)
        note = f"\n[{missing} bytes left out from offset {len(head)}; session {session_id} has them all]\n"
        return head + note.encode() + tail


def _whole_at_end(data: bytes) -> bytes:
    """Cut a UTF-8 character off that the end of `data` divides."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if length > back else data
    return data


def _whole_at_start(data: bytes) -> bytes:
    """Cut the rest of a UTF-8 character off that the start of `data` divides."""
    for index in range(min(3, len(data))):
        if data[index] & 0xC0 != 0x80:
            return data[index:]
    return data[3:] if len(data) > 3 and data[3] & 0xC0 != 0x80 else data

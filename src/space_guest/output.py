"""Output that a node has not acknowledged yet."""

from space_guest.protocol import CHUNK, OUTPUT_WINDOW, ProtocolError

TIGHT_WINDOW = 64 * 1024


class Budget:
    """Bytes kept by all streams together: beyond `limit`, each keeps only a little, so memory stays flat."""

    def __init__(self, limit: int = 32 * 1024 * 1024) -> None:
        self.limit = limit
        self.used = 0

    @property
    def window(self) -> int:
        return OUTPUT_WINDOW if self.used < self.limit else TIGHT_WINDOW


class OutputStream:
    """One stream of a process: `base` ≤ `sent` ≤ `end` are absolute offsets of the bytes kept and sent."""

    def __init__(self, number: int, budget: Budget) -> None:
        self.number = number
        self.base = 0
        self.sent = 0
        self._budget = budget
        self._kept = bytearray()

    @property
    def end(self) -> int:
        return self.base + len(self._kept)

    @property
    def kept(self) -> bytes:
        """What was not acknowledged yet."""
        return bytes(self._kept)

    @property
    def room(self) -> int:
        """How many bytes may be appended now."""
        return max(0, self._budget.window - len(self._kept))

    def append(self, data: bytes) -> None:
        self._kept += data
        self._budget.used += len(data)

    def take(self) -> tuple[int, bytes] | None:
        """Return offset and bytes to send next, marking them as sent; None if all was sent."""
        start = self.sent - self.base
        data = bytes(memoryview(self._kept)[start : start + CHUNK])
        if not data:
            return None
        self.sent += len(data)
        return self.sent - len(data), data

    def acknowledge(self, offset: int) -> None:
        """Drop what lies before `offset`; older acknowledgements are harmless."""
        if offset > self.sent:
            raise ProtocolError("output was acknowledged that was never sent")
        if offset > self.base:
            self._budget.used -= offset - self.base
            del self._kept[: offset - self.base]
            self.base = offset

    def rewind(self, offset: int) -> bool:
        """Send again from `offset`, which the node has everything before; False if that is impossible."""
        if not self.base <= offset <= self.end:
            return False
        self.sent = offset
        self.acknowledge(offset)
        return True

    def discard(self) -> None:
        """Give the kept bytes back; the stream is not used afterwards."""
        self._budget.used -= len(self._kept)
        self._kept.clear()

"""`Range` of RFC 9110 §14, as far as one range of bytes goes."""

import re
from dataclasses import dataclass

_ONE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`first-last`, `first-` or, with `first` None, the last `length` bytes."""

    first: int | None
    last: int | None
    length: int | None = None

    def within(self, size: int) -> tuple[int, int] | None:
        """Return start and length in a file of `size` bytes; None if nothing of it is asked for."""
        if self.first is None:
            length = min(self.length or 0, size)
            return (size - length, length) if length else None
        if self.first >= size:
            return None
        last = size - 1 if self.last is None else min(self.last, size - 1)
        return self.first, last - self.first + 1


def parse_range(header: str | None) -> ByteRange | None:
    """Read one range; whatever else the header holds is ignored, as the RFC allows, and all of the file is sent."""
    found = _ONE.fullmatch((header or "").strip())
    if found is None:
        return None
    first, last = found.groups()
    if first:
        if last and int(last) < int(first):
            return None
        return ByteRange(int(first), int(last) if last else None)
    return ByteRange(None, None, int(last)) if last else None

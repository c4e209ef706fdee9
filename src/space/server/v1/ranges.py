"""`Range` of RFC 9110 §14, as far as one range of bytes goes."""

import re
from dataclasses import dataclass

_ONE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`first-last`, or `first-` with `last` None."""

    first: int
    last: int | None

    @property
    def length(self) -> int | None:
        return None if self.last is None else self.last - self.first + 1

    def within(self, size: int) -> tuple[int, int] | None:
        """Return start and length in a file of `size` bytes; None if nothing of it is asked for."""
        if self.first >= size:
            return None
        last = size - 1 if self.last is None else min(self.last, size - 1)
        return self.first, last - self.first + 1


@dataclass(frozen=True, slots=True)
class Suffix:
    """`-count`: the last bytes of a file whose size must be known first."""

    count: int

    def of(self, size: int) -> ByteRange:
        """Return the same range counted from the start; beyond the end if it is empty."""
        start = size - min(self.count, size)
        return ByteRange(start, size - 1) if start < size else ByteRange(size, None)


def parse_range(header: str | None) -> ByteRange | Suffix | None:
    """Read one range; whatever else the header holds is ignored, as the RFC allows, and all of the file is sent."""
    found = _ONE.fullmatch((header or "").strip())
    if found is None:
        return None
    first, last = found.groups()
    if first:
        if last and int(last) < int(first):
            return None
        return ByteRange(int(first), int(last) if last else None)
    return Suffix(int(last)) if last else None

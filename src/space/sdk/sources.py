"""What can be uploaded, and whether it can be sent again."""

import io
from pathlib import Path
from typing import Any, BinaryIO

Source = bytes | str | BinaryIO | Path


def position_of(data: object) -> int | None:
    """Return where a seekable file stands; None for what cannot go back there."""
    if hasattr(data, "seekable") and hasattr(data, "tell") and data.seekable():
        return int(data.tell())
    return None


def is_replayable(data: object) -> bool:
    """Whether the same bytes can be had again after a broken connection."""
    return isinstance(data, bytes | bytearray | memoryview) or position_of(data) is not None


def measured(data: Any) -> dict[str, str]:
    """Return the header that tells the length, where it is known; else the body goes in chunks."""
    start = position_of(data)
    if start is None:
        return {}
    end = data.seek(0, io.SEEK_END)
    data.seek(start)
    return {"Content-Length": str(max(0, end - start))}


def opened(path: Path | str, mode: str) -> BinaryIO:
    """Open a local file in binary mode."""
    return Path(path).open(mode)  # type: ignore[return-value]  # `mode` is always a binary one

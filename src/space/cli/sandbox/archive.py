"""Directories as streams of tar, with no file in between and nothing held in memory."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from backports import tarfile  # with extraction filters, which Python 3.11.2 lacks

PIECE = 256 * 1024


def packed(directory: Path) -> Iterator[bytes]:
    """Yield a tar of what is in a directory; what cannot be read ends it with that error, not with a short tar."""
    failures: list[BaseException] = []
    receiving, sending = os.pipe()

    def pack() -> None:
        try:
            with os.fdopen(sending, "wb") as pipe, tarfile.open(fileobj=pipe, mode="w|", bufsize=PIECE) as archive:
                for path in sorted(directory.iterdir()):
                    archive.add(path, arcname=path.name)
        except BaseException as error:  # told to the reader, who raises it
            failures.append(error)

    thread = threading.Thread(target=pack, daemon=True)
    thread.start()
    with os.fdopen(receiving, "rb") as pipe:
        while piece := pipe.read(PIECE):
            yield piece
        thread.join()
    if failures:
        raise failures[0]


def unpack(pieces: Iterator[bytes], directory: Path) -> None:
    """Unpack a tar that a guest made, so nothing in it is trusted.

    The `data` filter refuses what would leave the directory, devices, and set-uid bits (PEP 706).
    """
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=_Pieces(pieces), mode="r|", bufsize=PIECE) as archive:
        archive.extractall(directory, filter="data")


class _Pieces:
    """An iterator of bytes as the little of a file that `tarfile` needs of a stream."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int) -> bytes:
        parts, wanted = [], size
        while wanted:
            if not self._rest:
                self._rest = next(self._pieces, b"")
                if not self._rest:
                    break
            part, self._rest = self._rest[:wanted], self._rest[wanted:]
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)

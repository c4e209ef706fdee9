"""Reading a local file in pieces.  Written by hand on both sides."""

from typing import BinaryIO


def read_piece(file: BinaryIO, size: int) -> bytes:
    """Read up to `size` bytes of a file, which may be a pipe."""
    return file.read(size)


def write_piece(file: BinaryIO, piece: bytes) -> None:
    """Write a piece to a file."""
    file.write(piece)

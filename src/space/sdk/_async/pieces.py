"""Reading a local file in pieces without blocking the event loop.  Written by hand on both sides."""

from typing import BinaryIO

import anyio.to_thread


async def read_piece(file: BinaryIO, size: int) -> bytes:
    """Read up to `size` bytes of a file, which may be a pipe, in a thread."""
    return await anyio.to_thread.run_sync(file.read, size)


async def write_piece(file: BinaryIO, piece: bytes) -> None:
    """Write a piece to a file, in a thread."""
    await anyio.to_thread.run_sync(file.write, piece)

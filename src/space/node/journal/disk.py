"""Reading and writing without stopping the event loop for a slow disk.

Bytes in the page cache move in microseconds, far less than a hop to a thread costs, so they are moved inline.
`RWF_NOWAIT` says whether a read would wait for the disk; for writes the file systems in use cannot tell, but one that
was slow announces that the kernel throttles this file, and the next ones go to a thread.
"""

import ctypes
import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path

import anyio.to_thread

SLOW_WRITE = 0.005  #: seconds; a page-cache write of 256 KiB takes about 0.1 ms
_SLOW_FOR = 0.25  #: seconds that writes stay in threads after a slow one
_MAX_BUFFERS = 512  #: below IOV_MAX
_KEEP_SIZE_AND_PUNCH_HOLE = 0x01 | 0x02

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

Buffers = Sequence[bytes | memoryview]


def write_all(fd: int, buffers: Buffers, offset: int) -> None:
    """Write all buffers at `offset`; raises OSError, with some of it perhaps written."""
    pending = list(buffers)
    while pending:
        count = os.pwritev(fd, pending[:_MAX_BUFFERS], offset)
        offset += count
        while pending and count >= len(pending[0]):
            count -= len(pending.pop(0))
        if count:
            pending[0] = memoryview(pending[0])[count:]
        elif pending and not len(pending[0]):
            pending.pop(0)


class Writer:
    """Writes to one file, inline while the kernel takes the bytes at once."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._slow_until = 0.0

    async def write(self, buffers: Buffers, offset: int) -> None:
        started = time.monotonic()
        if started < self._slow_until:
            await anyio.to_thread.run_sync(write_all, self._fd, buffers, offset)
        else:
            write_all(self._fd, buffers, offset)
        ended = time.monotonic()
        if ended - started > SLOW_WRITE:
            self._slow_until = ended + _SLOW_FOR


async def read_at(fd: int, offset: int, length: int) -> bytes | memoryview:
    """Read up to `length` bytes, fewer only at the end of the file."""
    buffer = bytearray(length)
    try:
        count = os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
            raise
        count = 0
    if count < length:
        rest = await anyio.to_thread.run_sync(os.pread, fd, length - count, offset + count)
        buffer[count : count + len(rest)] = rest
        count += len(rest)
    return memoryview(buffer)[:count]


def punch_hole(fd: int, start: int, length: int) -> None:
    """Give a range's disk blocks back; it reads as zeros from then on.  The file keeps its size."""
    if _libc.fallocate(fd, _KEEP_SIZE_AND_PUNCH_HOLE, start, length):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def sparse_copy(source: Path, target: Path, length: int, *, sync: bool = True) -> None:
    """Copy the first `length` bytes of a file to a new one, holes as holes."""
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        target.unlink(missing_ok=True)
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(reading).st_size < length:
                raise ValueError(f"{source.name} has fewer than {length} bytes")
            os.ftruncate(writing, length)
            position = 0
            while position < length:
                try:
                    position = os.lseek(reading, position, os.SEEK_DATA)
                except OSError as error:
                    if error.errno != errno.ENXIO:
                        raise
                    break
                end = min(os.lseek(reading, position, os.SEEK_HOLE), length)
                while position < end:
                    position += _copy_range(reading, writing, position, end - position)
            if sync:
                os.fsync(writing)
        finally:
            os.close(writing)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    finally:
        os.close(reading)


def _copy_range(source: int, target: int, position: int, length: int) -> int:
    try:
        return os.copy_file_range(source, target, length, position, position)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    data = os.pread(source, min(length, 1 << 20), position)
    write_all(target, [data], position)
    return len(data)

"""Between the files of an image and its chunks: hashing, gathering, scattering.  Called in threads."""

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from space.node.snapshots.manifest import Manifest
from space.node.snapshots.pages import HASH, PAGE

_BUFFER = 256 * PAGE

Run = tuple[int, int, int, int]  #: page of the chunk, number of pages, file, page of the file


class FileChanged(OSError):
    """A file of an image is shorter than it was."""


def hash_pages(path: Path, size: int) -> bytes:
    """Return the hash of each page of a file, one after the other; the last page is filled up with zeros.

    2.3 µs a page on the build machine, nearly all of it SHA-256: a second thread gains nothing, because handing over
    the interpreter's lock costs as much as it saves.
    """
    buffer = bytearray(_BUFFER)
    view = memoryview(buffer)
    found: list[bytes] = []
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        for at in range(0, size, _BUFFER):
            length = min(_BUFFER, size - at)
            _read(fd, view[:length], at)
            end = -(-length // PAGE) * PAGE
            view[length:end] = bytes(end - length)
            found += [sha256(view[page : page + PAGE]).digest()[:HASH] for page in range(0, end, PAGE)]
    finally:
        os.close(fd)
    return b"".join(found)


def sources(manifest: Manifest, first: int) -> list[list[Run]]:
    """Return where in the files the chunks from `first` on come from.

    They were filled in the order in which their pages are met in the files.
    """
    runs: list[list[Run]] = [[] for _ in range(first, len(manifest.chunk_pages))]
    filled = [0] * len(runs)
    for chunk, page, count, file, file_page in manifest.runs():
        if chunk >= first and page + count > filled[chunk - first]:
            have = filled[chunk - first]
            runs[chunk - first].append((have, page + count - have, file, file_page + have - page))
            filled[chunk - first] = page + count
    return runs


def gather(directory: Path, manifest: Manifest, runs: Sequence[Run], pages: int) -> bytearray:
    """Return the content of a chunk."""
    buffer = bytearray(pages * PAGE)
    view = memoryview(buffer)
    opened, fd = -1, -1
    try:
        for page, count, number, file_page in runs:
            file = manifest.files[number]
            if number != opened:
                if fd >= 0:
                    os.close(fd)
                fd = os.open(directory / file.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                opened = number
            start = file_page * PAGE
            length = min(count * PAGE, file.size - start)
            _read(fd, view[page * PAGE : page * PAGE + length], start)
    finally:
        if fd >= 0:
            os.close(fd)
    return buffer


def make_files(directory: Path, manifest: Manifest) -> None:
    """Make the files of an image, of their full size and without content."""
    directory.parent.mkdir(mode=0o700)
    directory.mkdir(mode=0o700)
    for file in manifest.files:
        path = directory / file.name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, file.size)
        finally:
            os.close(fd)


def scatter(directory: Path, manifest: Manifest, runs: Sequence[Run], content: bytes) -> None:
    """Write a chunk's pages to all places where they belong."""
    view = memoryview(content)
    opened, fd, size = -1, -1, 0
    try:
        for page, count, number, file_page in runs:
            if number != opened:
                if fd >= 0:
                    os.close(fd)
                file = manifest.files[number]
                fd = os.open(directory / file.name, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                opened, size = number, file.size
            start, at = file_page * PAGE, page * PAGE
            end = at + min(count * PAGE, size - start)
            while at < end:
                written = os.pwrite(fd, view[at:end], start)
                at, start = at + written, start + written
    finally:
        if fd >= 0:
            os.close(fd)


def by_chunk(manifest: Manifest) -> list[list[Run]]:
    """Return, for each chunk, where its pages belong."""
    runs: list[list[Run]] = [[] for _ in manifest.chunks]
    for chunk, page, count, file, file_page in manifest.runs():
        runs[chunk].append((page, count, file, file_page))
    return runs


def _read(fd: int, into: memoryview, at: int) -> None:
    while into:
        count = os.preadv(fd, [into], at)
        if count == 0:
            raise FileChanged("a file of a snapshot became shorter")
        into, at = into[count:], at + count

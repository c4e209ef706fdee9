"""Which shared libraries a program needs, read from the file itself: no loader is run and nothing is guessed."""

import struct
from collections.abc import Iterable
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3
_NEEDED, _STRINGS = 1, 5


class NotElf(ValueError):
    """The file is no 64-bit little-endian ELF file."""


def needed(path: Path) -> list[str]:
    """Return the names of the libraries that `path` asks for directly."""
    image = path.read_bytes()
    segments = _segments(image)
    for kind, offset, _, size in segments:
        if kind == _DYNAMIC:
            entries = list(_ENTRY.iter_unpack(image[offset : offset + size - size % _ENTRY.size]))
            strings = next((_file_offset(segments, value) for tag, value in entries if tag == _STRINGS), 0)
            return [_text(image, strings + value) for tag, value in entries if tag == _NEEDED]
    return []


def interpreter(path: Path) -> str | None:
    """Return the dynamic loader that `path` names, if it names one."""
    image = path.read_bytes()
    return next((_text(image, offset) for kind, offset, _, _ in _segments(image) if kind == _INTERPRETER), None)


def closure(programs: Iterable[Path], folders: Iterable[Path]) -> dict[str, Path]:
    """Return every library that `programs` need, directly or not: name → file in the first folder that has it.

    Raises:
        FileNotFoundError: a library is in none of the folders.
    """
    places = list(folders)
    found: dict[str, Path] = {}
    waiting = [name for program in programs for name in needed(program)]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        path = next((folder / name for folder in places if (folder / name).is_file()), None)
        if path is None:
            raise FileNotFoundError(f"the library {name} is not installed")
        found[name] = path.resolve()
        waiting += needed(found[name])
    return found


def _segments(image: bytes) -> list[tuple[int, int, int, int]]:
    """Return kind, file offset, address and size of each program header."""
    if len(image) < _HEADER.size or image[:6] != b"\x7fELF\x02\x01":
        raise NotElf("not a 64-bit little-endian ELF file")
    header = _HEADER.unpack_from(image)
    start, size, count = header[5], header[9], header[10]
    rows = (_SEGMENT.unpack_from(image, start + index * size) for index in range(count))
    return [(row[0], row[2], row[3], row[5]) for row in rows]


def _file_offset(segments: list[tuple[int, int, int, int]], address: int) -> int:
    for kind, offset, start, size in segments:
        if kind == _LOAD and start <= address < start + size:
            return offset + address - start
    raise NotElf("an address outside of the file")


def _text(image: bytes, start: int) -> str:
    return image[start : image.index(b"\0", start)].decode()

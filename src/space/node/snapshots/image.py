"""A moment as a directory, and how it is told that the directory is still whole.

    files/         what the runtime wrote, and `journals/`
    manifest       as it is in the object store: compressed and encrypted
    index          the hashes of all chunks' pages, for the next moment
    image.json     whose moment it is, and what `files/` looked like when it was known to be right

Nothing is synced: what is not in the object store dies with the machine anyway, and an image that was made before the
host's last start is not believed.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from stat import S_ISREG
from typing import Any

from space.core.ids import SnapshotId

FILES, MANIFEST, INDEX, NOTE = "files", "manifest", "index", "image.json"


@dataclass(frozen=True, slots=True)
class Image:
    """A moment on this node's disk.  Its files are only read, and stay as long as it is open."""

    path: Path  #: directory with the runtime's files, and with `journals/`
    meta: Mapping[str, Any] = field(repr=False)  #: what was given to `plan`; holds secrets


@dataclass(frozen=True, slots=True)
class Note:
    """What `image.json` says."""

    snapshot_id: SnapshotId
    size: int  #: bytes on the disk


@cache
def boot_id() -> str:
    """Return what is different after each start of the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write_note(directory: Path, snapshot_id: SnapshotId) -> Note:
    """Write down what the directory looks like; from now on it counts as whole."""
    looks = _looks(directory)
    blocks = sum(path.lstat().st_blocks for path in directory.rglob("*"))
    note = Note(snapshot_id, blocks * 512)
    words = {"snapshot_id": snapshot_id, "boot_id": boot_id(), "size": note.size, "files": looks}
    write_file(directory / NOTE, json.dumps(words).encode())
    return note


def read_note(directory: Path) -> Note | None:
    """Return the note if the directory still looks as it did then; None if it is to be removed."""
    try:
        words = json.loads((directory / NOTE).read_bytes())
        if words["boot_id"] != boot_id() or [tuple(entry) for entry in words["files"]] != _looks(directory):
            return None
        return Note(SnapshotId(words["snapshot_id"]), int(words["size"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def list_files(directory: Path) -> list[tuple[str, os.stat_result]]:
    """Return the regular files below a directory, by name; raises `ValueError` if there is anything else."""
    found: list[tuple[str, os.stat_result]] = []
    for parent, folders, names in os.walk(directory):
        folders.sort()
        for name in folders:
            if Path(parent, name).is_symlink():
                raise ValueError(f"a link among the files of a snapshot: {name!r}")
        for name in names:
            path = Path(parent, name)
            stat = path.lstat()
            if not S_ISREG(stat.st_mode):
                raise ValueError(f"no regular file among those of a snapshot: {name!r}")
            found.append((path.relative_to(directory).as_posix(), stat))
    return sorted(found, key=lambda entry: entry[0])


def write_file(path: Path, data: bytes) -> None:
    """Write a small private file whole or not at all."""
    temporary = path.with_name(f".{path.name}.new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)
    temporary.replace(path)


def _looks(directory: Path) -> list[tuple[str, int, int, int]]:
    """Return name, size, inode and time of the last change of each file that counts."""
    entries = [(f"{FILES}/{name}", stat) for name, stat in list_files(directory / FILES)]
    entries += [(name, (directory / name).lstat()) for name in (MANIFEST, INDEX)]
    return [(name, stat.st_size, stat.st_ino, stat.st_mtime_ns) for name, stat in entries]

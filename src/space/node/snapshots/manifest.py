"""What is written down of a snapshot: its files, where their pages are, and what the node knew of the machine.

A manifest is JSON, so that it can be read by eye, with its long lists in base64.  It is made by this program and
sealed with the project's key; all the same whoever reads it takes nothing for granted.
"""

import json
import re
import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from space.core.ids import SnapshotId, is_id
from space.core.snapshot import DIGEST_BYTES
from space.node.snapshots.pages import CHUNK_PAGES, HASH, MOST_PAGES, PAGE, ZEROS

VERSION = 1
#: Bytes of the index of pages in one object: the hashes of 16 chunks.  Larger ones change more often.
INDEX_PIECE = 1 << 16
_MOST_FILES = 100_000
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_MOST_PARTS = 4


class BadManifest(ValueError):
    """It cannot have been written by this program, or by a newer version of it."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of an image.  Its last page is filled up with zeros."""

    name: str
    size: int
    extents: int  #: how many of the manifest's extents are its

    @property
    def pages(self) -> int:
        return -(-self.size // PAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One snapshot."""

    snapshot_id: SnapshotId
    meta: Mapping[str, Any] = field(repr=False)  #: the node's own words; hold the agent's token
    files: Sequence[File]
    extents: "array[int]" = field(repr=False)  #: place and number of pages in turn, file after file; see `pages.py`
    chunks: Sequence[bytes] = field(repr=False)  #: names of the chunks
    chunk_pages: Sequence[int] = field(repr=False)
    index: Sequence[bytes] = field(repr=False)  #: names of the pieces of the index: the hashes of all chunks' pages

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def disk_size(self) -> int:
        """Bytes that the files take on a disk: pages of zeros are holes."""
        return sum(count for _, _, count, _, _ in self.runs()) * PAGE

    @property
    def index_size(self) -> int:
        return sum(self.chunk_pages) * HASH

    def runs(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield (chunk, page in it, number of pages, file, page of the file), without zeros."""
        at = 0
        for number, file in enumerate(self.files):
            page = 0
            for _ in range(file.extents):
                place, count = self.extents[at], self.extents[at + 1]
                at += 2
                if place != ZEROS:
                    yield place >> 8, place & 0xFF, count, number, page
                page += count


def encode(manifest: Manifest) -> bytes:
    """Return it as its name is made of it."""
    words = {
        "version": VERSION,
        "snapshot_id": manifest.snapshot_id,
        "meta": manifest.meta,
        "files": [[file.name, file.size, file.extents] for file in manifest.files],
        "extents": _from_numbers(manifest.extents),
        "chunks": b64encode(b"".join(manifest.chunks)).decode(),
        "chunk_pages": _from_numbers(array("I", manifest.chunk_pages)),
        "index": [piece.hex() for piece in manifest.index],
    }
    return json.dumps(words, separators=(",", ":")).encode()


def decode(data: bytes) -> Manifest:
    """Read it back; raises `BadManifest` for whatever would lead anywhere but into its own files and chunks."""
    try:
        words = json.loads(data)
        if words["version"] != VERSION:
            raise BadManifest(f"version {words['version']!r} is not {VERSION}")
        names = b64decode(words["chunks"], validate=True)
        manifest = Manifest(
            snapshot_id=words["snapshot_id"],
            meta=words["meta"],
            files=[File(*entry) for entry in words["files"]],
            extents=_to_numbers(words["extents"]),
            chunks=[names[at : at + DIGEST_BYTES] for at in range(0, len(names), DIGEST_BYTES)],
            chunk_pages=_to_numbers(words["chunk_pages"]),
            index=[bytes.fromhex(piece) for piece in words["index"]],
        )
        _check(manifest)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, BadManifest):
            raise
        raise BadManifest("it is no manifest") from error
    return manifest


def decode_meta(data: bytes) -> Mapping[str, Any]:
    """Return the meta alone of a manifest that was read whole before; in a huge one the rest takes longer."""
    meta: Mapping[str, Any] = json.loads(data)["meta"]
    return meta


def check_name(name: str) -> None:
    """Raise `BadManifest` unless it is a plain relative path below the image's directory."""
    parts = name.split("/")
    if len(parts) > _MOST_PARTS or not all(_PART.fullmatch(part) for part in parts):
        raise BadManifest(f"not a name for a file of a snapshot: {name[:200]!r}")


def _check(manifest: Manifest) -> None:
    if not is_id(manifest.snapshot_id, "snp") or not isinstance(manifest.meta, dict):
        raise BadManifest("it names no snapshot")
    if len(manifest.files) > _MOST_FILES:
        raise BadManifest("too many files")
    names = [file.name for file in manifest.files]
    for name in names:
        check_name(name)
    directories = {name.rpartition("/")[0] for name in names}
    if len(set(names)) != len(names) or directories & set(names):
        raise BadManifest("two files have one name")
    if not all(type(file.size) is type(file.extents) is int and min(file.size, file.extents) >= 0
               for file in manifest.files):  # fmt: skip
        raise BadManifest("a size is no number")
    if sum(file.pages for file in manifest.files) > MOST_PAGES:
        raise BadManifest("it is too large")
    if len(manifest.chunks) != len(manifest.chunk_pages) or any(len(name) != DIGEST_BYTES for name in manifest.chunks):
        raise BadManifest("its chunks have no names")
    if not all(1 <= pages <= CHUNK_PAGES for pages in manifest.chunk_pages):
        raise BadManifest("a chunk has an impossible size")
    if len(manifest.index) != -(-manifest.index_size // INDEX_PIECE):
        raise BadManifest("its index has another size than its chunks")
    if any(len(piece) != DIGEST_BYTES for piece in manifest.index):
        raise BadManifest("its index has no names")
    _check_extents(manifest)


def _check_extents(manifest: Manifest) -> None:
    extents, sizes = manifest.extents, manifest.chunk_pages
    if len(extents) != 2 * sum(file.extents for file in manifest.files):
        raise BadManifest("it has other extents than its files")
    at = 0
    for file in manifest.files:
        pages = 0
        for _ in range(file.extents):
            place, count = extents[at], extents[at + 1]
            at += 2
            if count == 0 or (
                place != ZEROS and (place >> 8 >= len(sizes) or (place & 0xFF) + count > sizes[place >> 8])
            ):
                raise BadManifest("an extent is outside its chunk")
            pages += count
        if pages != file.pages:
            raise BadManifest("a file has another size than its extents")


def _from_numbers(numbers: "array[int]") -> str:
    if sys.byteorder == "big":
        numbers = array("I", numbers)
        numbers.byteswap()
    return b64encode(numbers.tobytes()).decode()


def _to_numbers(text: str) -> "array[int]":
    numbers = array("I")
    numbers.frombytes(b64decode(text, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers

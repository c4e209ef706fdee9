"""Where each page of an image is: in a chunk of the base, or in a new one.  Pure.

A *place* is one number: the chunk's number in the manifest, then the page's within the chunk (eight bits).
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

PAGE = 4096
CHUNK_PAGES = 256  #: 1 MiB
#: Of the hash by which pages are found.  A collision takes 2^64 attempts and harms only the images of who made it.
HASH = 16
#: A chunk of the base of which fewer pages are used is not referred to; what is used of it is packed anew.  So an image
#: is never spread over more than four times as many chunks as it needs, however often it was saved.
LEAST_PAGES = CHUNK_PAGES // 4
ZEROS = 0xFFFFFFFF  #: the place of a page of zeros: nowhere
MOST_PAGES = 1 << 28  #: 1 TiB, far below what places can tell apart
ZERO_HASH = sha256(bytes(PAGE)).digest()[:HASH]


@dataclass(frozen=True, slots=True)
class Index:
    """What a moment's chunks hold: their names, and the hashes of their pages one after the other."""

    chunks: Sequence[bytes] = ()
    pages: Sequence[bytes] = ()


@dataclass(slots=True)
class Layout:
    """The places of an image's pages, as extents; `extents` holds place and number of pages in turn."""

    reused: list[int] = field(default_factory=list)  #: chunks of the base, which come first
    new_pages: list[int] = field(default_factory=list)  #: numbers of the image's pages that fill the new chunks
    new_hashes: bytes = b""
    unknown: int = 0  #: pages that neither the base nor this image had before
    extents: "array[int]" = field(default_factory=lambda: array("I"))
    file_extents: list[int] = field(default_factory=list)  #: how many extents each file has

    @property
    def new_chunks(self) -> int:
        return -(-len(self.new_pages) // CHUNK_PAGES)


def lay_out(files: Sequence[bytes], base: Index) -> Layout:
    """Decide for each page of each file; a file is the hashes of its pages, one after the other."""
    hashes = [data[at : at + HASH] for data in files for at in range(0, len(data), HASH)]
    layout = Layout()
    places = _reusable(hashes, base, layout)
    _place_new(hashes, places, layout)
    first = 0
    for data in files:
        count = len(data) // HASH
        before = len(layout.extents)
        _join(hashes[first : first + count], places, layout.extents)
        layout.file_extents.append((len(layout.extents) - before) // 2)
        first += count
    return layout


def _reusable(hashes: Sequence[bytes], base: Index, layout: Layout) -> dict[bytes, int]:
    """Return the places of pages in those chunks of the base that are worth being referred to."""
    known: dict[bytes, int] = {}
    for chunk, data in enumerate(base.pages):
        for page in range(len(data) // HASH):
            known.setdefault(data[page * HASH : (page + 1) * HASH], chunk << 8 | page)
    wanted = set(hashes)
    wanted.discard(ZERO_HASH)
    used = Counter(known[page] >> 8 for page in wanted if page in known)
    layout.unknown = sum(page not in known for page in wanted)
    few = [chunk for chunk, count in used.items() if count < LEAST_PAGES]
    if layout.unknown == 0 and len(few) == 1:
        few = []  # packing it anew would gain nothing, and nothing else is to be written
    layout.reused = sorted(set(used) - set(few))
    renumbered = {chunk: number for number, chunk in enumerate(layout.reused)}
    return {
        page: renumbered[place >> 8] << 8 | place & 0xFF for page, place in known.items() if place >> 8 in renumbered
    }


def _place_new(hashes: Sequence[bytes], places: dict[bytes, int], layout: Layout) -> None:
    places[ZERO_HASH] = ZEROS
    place = len(layout.reused) << 8
    new: list[bytes] = []
    for number, page in enumerate(hashes):
        if page not in places:
            places[page] = place  # chunks have 256 pages, so that counting on reaches the next chunk by itself
            place += 1
            new.append(page)
            layout.new_pages.append(number)
    layout.new_hashes = b"".join(new)


def _join(hashes: Sequence[bytes], places: dict[bytes, int], extents: "array[int]") -> None:
    """Append the extents of one file: neighbours within a chunk, and pages of zeros, are joined."""
    start = expected = -1
    count = 0
    for page in hashes:
        place = places[page]
        if place == expected and (place & 0xFF or place == ZEROS):
            count += 1
        else:
            if count:
                extents.append(start)
                extents.append(count)
            start, count = place, 1
        expected = ZEROS if place == ZEROS else place + 1
    if count:
        extents.append(start)
        extents.append(count)

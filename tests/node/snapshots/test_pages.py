"""Which pages are referred to, and which are packed anew."""

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from space.node.snapshots.pages import CHUNK_PAGES, HASH, LEAST_PAGES, ZERO_HASH, ZEROS, Index, Layout, lay_out


def hashes(*numbers: int) -> bytes:
    """Return the hashes of pages that these numbers stand for; 0 is a page of zeros."""
    return b"".join(sha256(str(number).encode()).digest()[:HASH] if number else ZERO_HASH for number in numbers)


def index_after(layout: Layout, base: Index) -> Index:
    """Return the index of the moment that was laid out."""
    step = CHUNK_PAGES * HASH
    new = [layout.new_hashes[at : at + step] for at in range(0, len(layout.new_hashes), step)]
    pages = [*(base.pages[chunk] for chunk in layout.reused), *new]
    return Index([bytes(32)] * len(pages), pages)


def pages_of(layout: Layout, index: Index) -> list[bytes]:
    """Follow the extents."""
    found: list[bytes] = []
    for at in range(0, len(layout.extents), 2):
        place, count = layout.extents[at], layout.extents[at + 1]
        if place == ZEROS:
            found += [ZERO_HASH] * count
        else:
            data, first = index.pages[place >> 8], place & 0xFF
            assert (first + count) * HASH <= len(data)
            found += [data[page * HASH : (page + 1) * HASH] for page in range(first, first + count)]
    return found


def extents(layout: Layout) -> list[tuple[int, int]]:
    return [(layout.extents[at], layout.extents[at + 1]) for at in range(0, len(layout.extents), 2)]


def test_neighbours_are_one_extent_and_repeated_pages_are_stored_once() -> None:
    layout = lay_out([hashes(1, 2, 3, 1, 2, 4)], Index())
    assert extents(layout) == [(0, 3), (0, 2), (3, 1)]
    assert layout.new_pages == [0, 1, 2, 5]
    assert layout.unknown == 4


def test_zeros_are_nowhere() -> None:
    layout = lay_out([hashes(0, 0, 1, 0)], Index())
    assert extents(layout) == [(ZEROS, 2), (0, 1), (ZEROS, 1)]
    assert layout.new_pages == [2]


def test_an_extent_ends_where_its_chunk_does() -> None:
    layout = lay_out([hashes(*range(1, 301))], Index())
    assert extents(layout) == [(0, 256), (256, 44)]


def test_the_same_image_again_needs_nothing_new() -> None:
    for count in (1, 10, 300, 1000):
        first = lay_out([hashes(*range(1, count))], Index())
        base = index_after(first, Index())
        again = lay_out([hashes(*range(1, count))], base)
        assert (again.new_pages, again.unknown) == ([], 0)
        assert again.extents == first.extents


def test_scattered_changes_need_only_what_changed() -> None:
    before = list(range(1, 4001))
    after = [number + 10_000 if number % 25 == 0 else number for number in before]
    base = index_after(lay_out([hashes(*before)], Index()), Index())
    layout = lay_out([hashes(*after)], base)
    assert layout.unknown == 160
    assert len(layout.new_pages) <= 160 + LEAST_PAGES  # the last, small chunk is packed anew


def test_a_chunk_that_is_hardly_used_is_packed_anew() -> None:
    base = index_after(lay_out([hashes(*range(1, 513))], Index()), Index())
    kept = lay_out([hashes(*range(1, LEAST_PAGES + 1), *range(257, 513), 9999)], base)
    assert kept.reused == [0, 1]
    dropped = lay_out([hashes(*range(1, LEAST_PAGES), *range(257, 513), 9999)], base)
    assert dropped.reused == [1]
    assert len(dropped.new_pages) == LEAST_PAGES
    assert dropped.unknown == 1


numbers = st.lists(st.integers(min_value=0, max_value=3000), max_size=1500)


@given(st.lists(st.lists(numbers, min_size=1, max_size=3), min_size=1, max_size=5))
def test_after_any_history_every_page_is_found_in_a_bounded_number_of_chunks(history: list[list[list[int]]]) -> None:
    base = Index()
    for image in history:
        files = [hashes(*file) for file in image]
        layout = lay_out(files, base)
        index = index_after(layout, base)
        assert b"".join(pages_of(layout, index)) == b"".join(files)
        assert sum(layout.file_extents) == len(layout.extents) // 2
        distinct = len({number for file in image for number in file} - {0})
        assert len(index.pages) <= distinct // LEAST_PAGES + 2
        assert layout.unknown <= distinct
        base = index

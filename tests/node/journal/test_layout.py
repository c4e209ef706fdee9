import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from space.core.journal import RecordKind
from space.node.journal import layout
from space.node.journal.layout import BLOCK_SIZE, RECORD

NOTHING = (0, 0, 0)


def encode(end: int, kind: RecordKind, payload: bytes, stream_offset: int = 0) -> tuple[bytes, layout.Encoded]:
    encoded = layout.encode(end, NOTHING, kind, stream_offset, payload)
    return b"".join(bytes(buffer) for buffer in encoded.buffers), encoded


def test_a_record_is_kind_length_offset_and_payload_in_big_endian() -> None:
    data, encoded = encode(100, RecordKind.STDERR, b"abc", 7)
    assert data == bytes([3]) + (3).to_bytes(4, "big") + (7).to_bytes(8, "big") + b"abc"
    assert encoded.end == 100 + 16
    assert encoded.written == (0, 3, 0)


@settings(deadline=None)
@given(
    start=st.integers(1, BLOCK_SIZE),
    size=st.one_of(st.integers(1, 100), st.integers(BLOCK_SIZE - 100, 2 * BLOCK_SIZE + 100)),
    kind=st.sampled_from([RecordKind.STDOUT, RecordKind.STDERR, RecordKind.PTY]),
)
def test_output_is_split_at_borders_and_keeps_its_bytes_and_offsets(start: int, size: int, kind: RecordKind) -> None:
    payload = (bytes(range(251)) * (size // 251 + 1))[:size]
    data, encoded = encode(start, kind, payload, 1000)
    assert len(data) == encoded.end - start
    found, position = b"", start
    while position < encoded.end:
        until = min(layout.block_of(position) + BLOCK_SIZE, encoded.end)
        for record in layout.decode(data[position - start : until - start], position):
            assert record.kind is kind
            assert record.stream_offset == 1000 + len(found)
            assert layout.block_of(record.position - 1) == layout.block_of(position)
            found += record.payload
        position = until
    assert found == payload


@settings(deadline=None)
@given(room=st.integers(1, 2000), size=st.integers(0, layout.MAX_EVENT_BYTES))
def test_an_event_is_never_split(room: int, size: int) -> None:
    start = BLOCK_SIZE - room
    data, _ = encode(start, RecordKind.PROCESS_EXITED, bytes(size))
    records = [*layout.decode(data[:room], start), *layout.decode(data[room:], BLOCK_SIZE)]
    assert [len(record.payload) for record in records] == [size]


def test_an_event_that_could_not_fit_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 65536"):
        layout.encode(0, NOTHING, RecordKind.PROCESS_EXITED, 0, bytes(layout.MAX_EVENT_BYTES + 1))


def test_a_kind_that_nobody_writes_is_damage() -> None:
    with pytest.raises(layout.Damaged):
        list(layout.decode(RECORD.pack(99, 0, 0), 50))


def test_a_length_over_the_border_is_damage() -> None:
    with pytest.raises(layout.Damaged):
        list(layout.decode(RECORD.pack(RecordKind.STDOUT, BLOCK_SIZE, 0) + b"x", 50))


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 3 * BLOCK_SIZE))
def test_any_bytes_are_decoded_or_damaged_but_never_loop(data: bytes, position: int) -> None:
    try:
        records = list(layout.decode(data, position))
    except layout.Damaged:
        return
    assert sum(RECORD.size + len(record.payload) for record in records) <= len(data)

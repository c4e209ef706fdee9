import itertools
import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.sdk.sse import MAX_FRAME, Frame, FrameParser, FrameTooLargeError, parse_frame

LINES = st.binary(max_size=200).map(lambda raw: raw.replace(b"\r", b"").replace(b"\n", b""))
FRAMES = st.lists(
    st.tuples(st.sampled_from(["stdout", "stderr", "process_exited"]), st.integers(0, 1 << 40), LINES), max_size=20
)


def parsed(pieces: Iterable[bytes]) -> list[Frame]:
    parser = FrameParser()
    return [frame for piece in pieces for frame in parser.feed(piece)]


def cut(text: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


@given(FRAMES, st.lists(st.integers(0, 1 << 16), max_size=50), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_any_cutting_of_the_stream_gives_the_same_frames(
    frames: list[tuple[str, int, bytes]], places: list[int], ending: bytes
) -> None:
    lines: list[bytes] = []
    for event, position, data in frames:
        lines += [f"id: {position}".encode(), f"event: {event}".encode(), b"data: " + data, b"", b": comment", b""]
    text = b"".join(line + ending for line in lines)

    assert parsed(cut(text, places)) == [Frame(event, data, str(position)) for event, position, data in frames]


@given(st.binary(max_size=500), st.lists(st.integers(0, 1 << 16), max_size=20))
def test_garbage_is_parsed_the_same_however_it_is_cut(text: bytes, places: list[int]) -> None:
    assert parsed(cut(text, places)) == parsed([text]) == parsed(text[i : i + 1] for i in range(len(text)))


def test_lines_of_data_are_joined_and_only_one_space_is_dropped() -> None:
    assert parse_frame(b"data:  two\ndata:\ndata:x") == Frame("message", b" two\n\nx")


def test_comments_and_frames_without_data_dispatch_nothing() -> None:
    assert parsed([b": keep-alive\n\nid: 4\nevent: stdout\n\n\n\n"]) == []


def test_a_byte_order_mark_at_the_start_is_dropped_even_when_cut() -> None:
    assert parsed([b"\xef", b"\xbb", b"\xbfdata: x\n\n"]) == [Frame("message", b"x")]


def test_an_unfinished_frame_is_not_told() -> None:
    assert parsed([b"data: whole\n\ndata: half\n"]) == [Frame("message", b"whole")]


def test_an_id_with_nul_is_ignored_as_the_standard_says() -> None:
    assert parsed([b"id: a\0b\ndata: x\n\n"]) == [Frame("message", b"x", None)]


def test_a_stream_without_blank_lines_does_not_eat_memory() -> None:
    parser = FrameParser()
    piece = b"x" * (1 << 20)
    for _ in range(MAX_FRAME // len(piece)):
        assert list(parser.feed(piece)) == []
    with pytest.raises(FrameTooLargeError):
        list(parser.feed(b"x"))


def test_json_data_survives() -> None:
    body = {"data": "ü" * 10, "offset": 3}
    (frame,) = parsed([f"data: {json.dumps(body)}\n\n".encode()])
    assert json.loads(frame.data) == body

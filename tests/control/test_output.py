"""Head and tail: whole while it fits, honest about the rest, never more memory than the limit."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.control.output import HeadAndTail, check_limit
from space.core.errors import InvalidRequest

NOTE = re.compile(rb"\n\[(\d+) bytes left out from offset (\d+); session ses1 has them all\]\n")


@given(st.binary(max_size=400), st.integers(0, 64), st.integers(1, 40))
def test_what_is_kept_is_the_head_and_the_tail_and_the_note_accounts_for_the_rest(
    data: bytes, limit: int, chunk: int
) -> None:
    kept = HeadAndTail(limit)
    for start in range(0, len(data), chunk):
        kept.add(data[start : start + chunk])
    value = kept.value(session_id="ses1")

    assert kept.total == len(data)
    if len(data) <= limit:
        assert not kept.is_truncated
        assert value == data
        return
    assert kept.is_truncated
    note = NOTE.search(value)
    assert note is not None
    head, tail, missing = value[: note.start()], value[note.end() :], int(note[1])
    assert data.startswith(head)
    assert data.endswith(tail)
    assert int(note[2]) == len(head)
    assert len(head) + missing + len(tail) == len(data)
    assert len(head) + len(tail) <= limit


@given(st.text(max_size=200), st.integers(8, 64))
def test_text_is_cut_between_characters(text: str, limit: int) -> None:
    kept = HeadAndTail(limit)
    kept.add(text.encode())
    kept.value(session_id="ses1").decode()  # raises if a character was divided


def test_a_hundred_thousand_small_writes_take_no_more_memory_than_their_bytes() -> None:
    kept = HeadAndTail(1 << 20)
    for _ in range(600_000):
        kept.add(b"x\n")
    assert len(kept._tail) <= 4096
    assert len(kept.value(session_id="ses1")) < (1 << 20) + 200


def test_bytes_that_the_journal_lost_are_counted_as_left_out() -> None:
    kept = HeadAndTail(100)
    kept.add(b"ab", offset=0)
    kept.add(b"yz", offset=1000)
    assert kept.is_truncated
    assert kept.value(session_id="ses1") == b"ab\n[998 bytes left out from offset 2; session ses1 has them all]\nyz"


@pytest.mark.parametrize("limit", [-1, (16 << 20) + 1])
def test_a_limit_that_an_answer_cannot_hold_is_refused(limit: int) -> None:
    with pytest.raises(InvalidRequest):
        check_limit(limit)

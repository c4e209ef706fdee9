"""Ids: fixed form, fixed length, in the order of time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.ids import ALPHABET, LENGTH, PREFIXES, is_id, make_id

MS = st.integers(0, (1 << 48) - 1)
RANDOM = st.binary(min_size=10, max_size=10)


@given(st.sampled_from(PREFIXES), MS, RANDOM)
def test_an_id_has_one_length_and_one_spelling(prefix: str, unix_ms: int, randomness: bytes) -> None:
    made = make_id(prefix, unix_ms=unix_ms, randomness=randomness)
    assert len(made) == LENGTH
    assert is_id(made, prefix)
    assert set(made[3:]) <= set(ALPHABET)


@given(MS, MS, RANDOM, RANDOM)
def test_ids_sort_by_the_millisecond_in_which_they_were_made(first: int, second: int, one: bytes, two: bytes) -> None:
    if first < second:
        assert make_id("sbx", unix_ms=first, randomness=one) < make_id("sbx", unix_ms=second, randomness=two)


@given(MS, RANDOM)
def test_an_id_carries_the_bits_of_a_uuid_version_7(unix_ms: int, randomness: bytes) -> None:
    text = make_id("ops", unix_ms=unix_ms, randomness=randomness)[3:]
    value = 0
    for character in text:
        value = value << 5 | ALPHABET.index(character)
    uuid = value >> 2
    assert uuid >> 80 == unix_ms
    assert uuid >> 76 & 0xF == 7
    assert uuid >> 62 & 0b11 == 0b10


@given(st.text(max_size=40))
def test_other_text_is_no_id(text: str) -> None:
    if not (len(text) == LENGTH and text.isascii() and text.startswith("sbx")):
        assert not is_id(text, "sbx")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sbx",
        "sbx" + "0" * 25,
        "sbx" + "0" * 27,
        "SBX" + "0" * 26,
        "sbx" + "z" * 26,
        "sbx" + "0" * 25 + "1",
        "ops" + "0" * 26,
    ],
)
def test_malformed_ids_are_refused(text: str) -> None:
    assert not is_id(text, "sbx")


def test_an_unknown_prefix_and_short_randomness_are_errors() -> None:
    with pytest.raises(ValueError, match="prefix"):
        make_id("abc", unix_ms=0, randomness=b"0" * 10)
    with pytest.raises(ValueError, match="ten random bytes"):
        make_id("sbx", unix_ms=0, randomness=b"")

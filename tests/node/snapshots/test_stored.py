"""Objects as they are stored: nothing but what was put under a name is taken for it."""

import os

import pytest
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from space.node.snapshots.stored import CHUNK, MANIFEST, Damaged, name_of_content, seal, unseal

KEY = bytes(range(32))
DATA = b"the memory of a guest " * 1000
NAME = name_of_content(DATA, key=KEY)


def stored(data: bytes = DATA, *, key: bytes = KEY) -> bytes:
    return seal(data, kind=CHUNK, name=name_of_content(data, key=key), key=key)


def test_it_comes_back_and_is_small_and_shows_nothing() -> None:
    assert unseal(stored(), kind=CHUNK, name=NAME, key=KEY, size=len(DATA)) == DATA
    assert len(stored()) < 1000
    assert b"guest" not in stored()


def test_nothing_and_noise_come_back_too() -> None:
    for data in (b"", os.urandom(1 << 20)):
        assert unseal(stored(data), kind=CHUNK, name=name_of_content(data, key=KEY), key=KEY) == data


def test_another_projects_key_opens_nothing() -> None:
    with pytest.raises(Damaged, match="another project"):
        unseal(stored(key=os.urandom(32)), kind=CHUNK, name=NAME, key=KEY)


def test_the_store_cannot_pass_off_one_object_as_another() -> None:
    with pytest.raises(Damaged):
        unseal(stored(b"another chunk of the project"), kind=CHUNK, name=NAME, key=KEY)
    with pytest.raises(Damaged):
        unseal(stored(), kind=MANIFEST, name=NAME, key=KEY)


def test_content_that_has_another_name_is_refused_although_it_was_sealed_for_it() -> None:
    forged = seal(b"not that", kind=CHUNK, name=NAME, key=KEY)
    with pytest.raises(Damaged, match="another name"):
        unseal(forged, kind=CHUNK, name=NAME, key=KEY)


def test_every_cut_and_every_turned_bit_is_noticed() -> None:
    good = stored(b"x" * 100)
    name = name_of_content(b"x" * 100, key=KEY)
    for length in range(len(good)):
        with pytest.raises(Damaged):
            unseal(good[:length], kind=CHUNK, name=name, key=KEY)
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1
        with pytest.raises(Damaged):
            unseal(bytes(bad), kind=CHUNK, name=name, key=KEY)


def _sealed_frame(frame: bytes, name: bytes) -> bytes:
    nonce = os.urandom(12)
    return b"\x01" + nonce + AESGCM(KEY).encrypt(nonce, frame, CHUNK.encode() + name)


def test_a_bomb_is_not_decompressed() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(400 << 20))
    for size in (None, 1 << 20):
        with pytest.raises(Damaged, match="size"):
            unseal(_sealed_frame(bomb, NAME), kind=CHUNK, name=NAME, key=KEY, size=size)


def test_a_frame_that_does_not_say_its_size_is_refused() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(DATA)
    with pytest.raises(Damaged):
        unseal(_sealed_frame(frame, NAME), kind=CHUNK, name=NAME, key=KEY)


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(Damaged):
        unseal(_sealed_frame(b"no frame at all", NAME), kind=CHUNK, name=NAME, key=KEY)

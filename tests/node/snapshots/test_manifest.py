"""Manifests that lead anywhere but into their own files and chunks are refused."""

import json
from array import array
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.ids import SnapshotId
from space.node.snapshots.manifest import BadManifest, File, Manifest, check_name, decode, decode_meta, encode
from space.node.snapshots.pages import ZEROS

ID = SnapshotId("snp" + "0" * 26)


def manifest() -> Manifest:
    return Manifest(
        snapshot_id=ID,
        meta={"token": "secret"},
        files=[File("machine/pages.img", 3 * 4096, 2), File("journals/a", 10, 1), File("empty", 0, 0)],
        extents=array("I", [0, 2, ZEROS, 1, 256, 1]),
        chunks=[b"a" * 32, b"b" * 32],
        chunk_pages=[2, 1],
        index=[b"c" * 32],
    )


def test_it_is_read_as_it_was_written() -> None:
    found = decode(encode(manifest()))
    assert encode(found) == encode(manifest())
    assert list(found.runs()) == [(0, 0, 2, 0, 0), (1, 0, 1, 1, 0)]
    assert decode_meta(encode(manifest())) == {"token": "secret"}


def test_its_secrets_are_not_in_its_representation() -> None:
    assert "secret" not in repr(manifest())


def numbers(*values: int) -> str:
    return b64encode(array("I", values).tobytes()).decode()


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another version": lambda words: words.update(version=2),
    "no version": lambda words: words.pop("version"),
    "no snapshot": lambda words: words.update(snapshot_id="../../etc"),
    "no mapping": lambda words: words.update(meta=[]),
    "a path outside": lambda words: words["files"][0].__setitem__(0, "../../etc/shadow"),
    "an absolute path": lambda words: words["files"][0].__setitem__(0, "/etc/shadow"),
    "an empty name": lambda words: words["files"][0].__setitem__(0, ""),
    "a name with zero byte": lambda words: words["files"][0].__setitem__(0, "a\0b"),
    "two files of one name": lambda words: words["files"][2].__setitem__(0, "journals/a"),
    "a file that is a directory too": lambda words: words["files"][2].__setitem__(0, "journals"),
    "a name that is a number": lambda words: words["files"][0].__setitem__(0, 7),
    "a negative size": lambda words: words["files"][2].__setitem__(1, -1),
    "a size that is a word": lambda words: words["files"][0].__setitem__(1, "12288"),
    "an enormous size": lambda words: words["files"][0].__setitem__(1, 1 << 62),
    "a larger file than its extents": lambda words: words["files"][0].__setitem__(1, 4 * 4096),
    "a file that takes another one's extents": lambda words: words["files"][0].__setitem__(2, 3),
    "more extents than there are": lambda words: words["files"][0].__setitem__(2, 1 << 40),
    "an extent beyond its chunk": lambda words: words.update(extents=numbers(1, 2, ZEROS, 1, 256, 1)),
    "an extent of no chunk": lambda words: words.update(extents=numbers(0, 2, ZEROS, 1, 512, 1)),
    "an extent of nothing": lambda words: words.update(extents=numbers(0, 3, ZEROS, 0, 256, 1)),
    "half an extent": lambda words: words.update(extents=numbers(0, 2, ZEROS, 1, 256)),
    "extents that are no base64": lambda words: words.update(extents="!!!!"),
    "a chunk without a name": lambda words: words.update(chunks=b64encode(b"a" * 40).decode()),
    "a chunk without a size": lambda words: words.update(chunk_pages=numbers(2)),
    "an empty chunk": lambda words: words.update(chunk_pages=numbers(2, 0)),
    "a chunk of a gigabyte": lambda words: words.update(chunk_pages=numbers(2, 1 << 18)),
    "no index": lambda words: words.update(index=[]),
    "an index without a name": lambda words: words.update(index=["ab"]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_manifest_with_this_is_refused(change: Callable[[dict[str, Any]], Any]) -> None:
    words = json.loads(encode(manifest()))
    change(words)
    with pytest.raises(BadManifest):
        decode(json.dumps(words).encode())


@given(st.binary(max_size=300) | st.recursive(
    st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(BadManifest):
        decode(data)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(BadManifest):
        decode(b"[" * 1_000_000)


@pytest.mark.parametrize(
    "name",
    ["..", ".", "a/..", "../a", "/a", "a//b", "a/", "", ".hidden", "a b", "a\n", "é", "a\\b", "x" * 200, "a/b/c/d/e"],
)
def test_a_name_that_is_no_plain_relative_path_is_refused(name: str) -> None:
    with pytest.raises(BadManifest):
        check_name(name)

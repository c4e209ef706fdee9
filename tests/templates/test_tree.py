import os
from collections.abc import Callable
from pathlib import Path

import pytest

from space.templates.tree import tree_digest


def make_tree(root: Path) -> Path:
    (root / "bin").mkdir(parents=True)
    (root / "bin/tool").write_bytes(b"#!/bin/sh\n")
    (root / "bin/tool").chmod(0o755)
    (root / "link").symlink_to("bin/tool")
    (root / "empty").mkdir()
    os.mkfifo(root / "pipe")
    (root / os.fsdecode(b"not-utf-8-\xff")).write_bytes(b"x")
    return root


def test_the_same_tree_made_twice_has_the_same_digest(tmp_path: Path) -> None:
    one, two = make_tree(tmp_path / "one"), make_tree(tmp_path / "two")
    os.utime(two / "bin/tool", (1, 1))
    assert tree_digest(one) == tree_digest(two)


def test_the_size_is_that_of_regular_files(tmp_path: Path) -> None:
    assert tree_digest(make_tree(tmp_path / "one"))[1] == len(b"#!/bin/sh\n") + 1


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda root: (root / "bin/tool").write_bytes(b"#!/bin/ls\n"),
    "mode": lambda root: (root / "bin/tool").chmod(0o4755),
    "directory mode": lambda root: (root / "empty").chmod(0o700),
    "root mode": lambda root: root.chmod(0o700),
    "link target": lambda root: ((root / "link").unlink(), (root / "link").symlink_to("bin/other")),
    "name": lambda root: (root / "bin/tool").rename(root / "bin/tool2"),
    "new file": lambda root: (root / "new").touch(),
    "new empty directory": lambda root: (root / "new").mkdir(),
    "link becomes a copy": lambda root: ((root / "link").unlink(), (root / "link").write_bytes(b"bin/tool")),
    "pipe becomes a file": lambda root: ((root / "pipe").unlink(), (root / "pipe").touch()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_gives_another_digest(tmp_path: Path, change: str) -> None:
    root = make_tree(tmp_path / "one")
    before, _ = tree_digest(root)
    CHANGES[change](root)
    after, _ = tree_digest(root)
    assert before != after


def test_a_name_cannot_pretend_to_be_two_files(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (one / "a").touch()
    (one / "b").touch()
    digest, _ = tree_digest(one)
    info = os.lstat(one / "b")
    line = f"{0o100000:o} {info.st_mode & 0o7777:o} {info.st_uid} {info.st_gid} 0"
    (two / f"a\n{line}").touch()
    assert tree_digest(two)[0] != digest


@pytest.mark.root
def test_an_owner_and_a_device_number_count(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "one")
    digests = {tree_digest(root)[0]}
    os.chown(root / "bin/tool", 1000, 1000)
    digests.add(tree_digest(root)[0])
    os.mknod(root / "null", 0o20666, os.makedev(1, 3))
    digests.add(tree_digest(root)[0])
    (root / "null").unlink()
    os.mknod(root / "null", 0o20666, os.makedev(1, 5))
    digests.add(tree_digest(root)[0])
    assert len(digests) == 4

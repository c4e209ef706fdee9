"""Thin layers over system calls."""

from pathlib import Path

import pytest

from space.host import linux


def test_a_failing_call_names_the_error_and_the_thing() -> None:
    with pytest.raises(FileNotFoundError, match="umount /no/such/place"):
        linux.umount("/no/such/place")


@pytest.mark.root
def test_mounts_below_a_directory_are_innermost_first(tmp_path: Path) -> None:
    outer = tmp_path / "with space"
    outer.mkdir()
    linux.mount("none", outer, "tmpfs")
    (outer / "inner").mkdir()
    linux.mount("none", outer / "inner", "tmpfs")
    assert linux.mounts_below(tmp_path) == [outer / "inner", outer]
    for path in linux.mounts_below(tmp_path):
        linux.umount(path)
    assert linux.mounts_below(tmp_path) == []

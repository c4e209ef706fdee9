"""Sealing secrets."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from space.core.errors import Unavailable
from space.storage.seal import KeyFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "seal.key"


def test_what_is_sealed_is_opened_by_the_same_key_later(path: Path) -> None:
    sealed = KeyFile(path).seal(b"very secret", context="project prj1")
    assert KeyFile(path).open(sealed, context="project prj1") == b"very secret"


def test_what_is_sealed_shows_nothing_and_is_never_the_same_twice(path: Path) -> None:
    sealer = KeyFile(path)
    one, other = (sealer.seal(b"very secret", context="x") for _ in range(2))
    assert one != other
    assert b"secret" not in one


def test_a_secret_cannot_be_opened_as_somebody_elses(path: Path) -> None:
    sealer = KeyFile(path)
    with pytest.raises(Unavailable, match="prj2"):
        sealer.open(sealer.seal(b"x", context="prj1"), context="prj2")


def test_another_installations_key_opens_nothing(path: Path, tmp_path: Path) -> None:
    sealed = KeyFile(tmp_path / "other.key").seal(b"x", context="prj1")
    with pytest.raises(Unavailable, match="replaced"):
        KeyFile(path).open(sealed, context="prj1")


def test_any_changed_byte_is_noticed(path: Path) -> None:
    sealer = KeyFile(path)
    sealed = sealer.seal(b"secret", context="c")
    for position in range(len(sealed)):
        forged = bytearray(sealed)
        forged[position] ^= 1
        with pytest.raises(Unavailable):
            sealer.open(bytes(forged), context="c")
    for length in range(len(sealed)):
        with pytest.raises(Unavailable):
            sealer.open(sealed[:length], context="c")


def test_the_key_is_made_whole_for_the_owner_only_and_then_kept(path: Path) -> None:
    KeyFile(path)
    key = path.read_bytes()
    assert len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    KeyFile(path)
    assert path.read_bytes() == key
    assert [found.name for found in path.parent.iterdir()] == ["seal.key"]


def test_a_key_that_others_can_read_is_refused(path: Path) -> None:
    KeyFile(path)
    path.chmod(0o644)
    with pytest.raises(Unavailable, match="chmod 600"):
        KeyFile(path)


def test_a_damaged_key_is_refused_and_not_replaced(path: Path) -> None:
    path.touch(mode=0o600)
    with pytest.raises(Unavailable, match="backup"):
        KeyFile(path)
    assert path.read_bytes() == b""


def test_a_key_that_cannot_be_made_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"missing/seal\.key"):
        KeyFile(tmp_path / "missing/seal.key")


@pytest.mark.live
def test_processes_that_start_together_share_one_key(path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from space.storage.seal import KeyFile;"
        "sys.stdin.read(1); sealer = KeyFile(Path(sys.argv[1]));"
        "sys.stdout.buffer.write(sealer.seal(b'x', context='c'))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, os.fspath(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    answers = [process.communicate(b"g")[0] for process in processes]
    sealer = KeyFile(path)
    assert [sealer.open(sealed, context="c") for sealed in answers] == [b"x"] * 4

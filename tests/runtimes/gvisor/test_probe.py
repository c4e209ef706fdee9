"""Whether gVisor works is found by trying, and a "no" says what to do."""

from pathlib import Path

import pytest

from space.runtimes.gvisor.command import Runsc
from space.runtimes.gvisor.found import processes
from space.runtimes.gvisor.probe import probe

pytestmark = [pytest.mark.anyio, pytest.mark.root]


async def test_a_working_runsc_is_available_with_its_version(tmp_path: Path) -> None:
    found = await probe(Runsc(program="runsc", root=tmp_path))
    assert found.is_available
    assert found.version
    assert found.pause
    assert found.memory_snapshot
    assert found.snapshot_format


async def test_a_missing_runsc_is_a_no_with_the_way_to_get_it(tmp_path: Path) -> None:
    found = await probe(Runsc(program="no-such-runsc", root=tmp_path))
    assert not found.is_available
    assert "apt-get install" in found.reasons["available"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 1", "does not run"),
        (
            'case "$*" in *version*) echo runsc version 1;; *) echo no such platform >&2; exit 1;; esac',
            "no such platform",
        ),
    ],
)
async def test_a_runsc_that_fails_is_a_no_with_what_it_said(tmp_path: Path, script: str, said: str) -> None:
    program = tmp_path / "runsc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    found = await probe(Runsc(program=str(program), root=tmp_path))
    assert not found.is_available
    assert said in found.reasons["available"]


async def test_a_trial_that_hangs_proves_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    program = tmp_path / "runsc"
    program.write_text('#!/bin/sh\ncase "$*" in *version*) echo runsc version 1;; *) exec sleep 60;; esac\n')
    program.chmod(0o755)
    found = await probe(Runsc(program=str(program), root=tmp_path))
    assert found.is_available
    assert list(processes(tmp_path)) == []

"""The files of SPACE's own processes, read by other versions, after reboots, and when pids were used again."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from space.host.daemon import (
    ProcessFile,
    read_process_file,
    remove_process_file,
    start_time_of,
    stop_process,
    write_process_file,
)


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; echo; exec sleep 600"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def entry_of(pid: int) -> ProcessFile:
    start_time = start_time_of(pid)
    assert start_time is not None
    return ProcessFile(pid=pid, start_time=start_time, root="/", build="b", api_url="http://x", log=None)


def write(run_dir: Path, content: object) -> None:
    (run_dir / "up.json").write_text(json.dumps(content))


def test_a_process_that_runs_is_found_until_it_is_forgotten(tmp_path: Path) -> None:
    write_process_file(tmp_path, "up", root=Path("/r"), build="b", api_url="http://x", log=None)
    found = read_process_file(tmp_path, "up")
    assert found is not None
    assert (found.pid, found.build) == (os.getpid(), "b")
    assert (tmp_path / "up.pid").read_text() == f"{os.getpid()}\n"
    remove_process_file(tmp_path, "up")
    assert read_process_file(tmp_path, "up") is None
    assert not list(tmp_path.iterdir())


def test_files_of_earlier_and_later_versions_are_understood(tmp_path: Path) -> None:
    content = asdict(entry_of(os.getpid()))
    write(tmp_path, {**content, "something_new": 1})
    assert read_process_file(tmp_path, "up") is not None
    del content["boot_id"]
    write(tmp_path, content)
    assert read_process_file(tmp_path, "up") is not None


@pytest.mark.parametrize("content", [[], "x", {}, {"pid": 1}])
def test_what_is_no_such_file_names_no_process(tmp_path: Path, content: object) -> None:
    write(tmp_path, content)
    assert read_process_file(tmp_path, "up") is None


def test_after_a_reboot_the_process_is_another(tmp_path: Path) -> None:
    write(tmp_path, asdict(replace(entry_of(os.getpid()), boot_id="00000000-0000-4000-8000-000000000000")))
    assert read_process_file(tmp_path, "up") is None


def test_one_that_ignores_a_request_to_end_is_killed(child: "subprocess.Popen[bytes]") -> None:
    assert stop_process(entry_of(child.pid), grace=0.2)
    assert child.wait() == -signal.SIGKILL


def test_another_process_with_the_same_pid_is_left_alone(child: "subprocess.Popen[bytes]") -> None:
    entry = entry_of(child.pid)
    assert stop_process(replace(entry, start_time=entry.start_time - 1), grace=0.2)
    assert child.poll() is None

"""Reading runsc's processes off /proc."""

import os
from pathlib import Path

import pytest

from space.host.process import spawn
from space.runtimes.gvisor.found import COMMAND, GOFER, SENTRY, processes

pytestmark = pytest.mark.anyio

ID = "sbx" + "0" * 31 + "7"


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "machine_id"),
    [
        (SENTRY, ["boot", "--bundle=/x/y", ID], SENTRY, ID),
        (GOFER, ["gofer", f"--bundle=/data/{ID}", "--io-fds=6"], GOFER, ID),
        ("runsc", ["run", "-detach", ID], COMMAND, ID),
        ("runsc", ["exec", "-user=0", ID, "/bin/sleep", "sbx" + "0" * 32], COMMAND, ID),
        ("runsc", ["list"], COMMAND, None),
    ],
)
async def test_a_process_tells_its_kind_and_machine(
    tmp_path: Path, name: str, arguments: list[str], kind: str, machine_id: str | None
) -> None:
    # A shell that sleeps stands in for runsc: only its command line matters.
    program = tmp_path / name
    program.symlink_to("/bin/sh")
    line = [str(program), "-c", "read forever", f"--root={tmp_path}", *arguments]
    reading, writing = os.pipe()
    process = spawn(line, stdin=reading)
    try:
        (found,) = processes(tmp_path)
        assert (found.pid, found.kind, found.machine_id) == (process.pid, kind, machine_id)
        assert found.start_time == process.start_time
        assert list(processes(tmp_path / "other")) == []
    finally:
        await process.stop(grace=0)
        os.close(reading)
        os.close(writing)
    assert list(processes(tmp_path)) == []

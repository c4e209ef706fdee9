"""The agent as a program: without root, with bad arguments, at its end."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from space.core.errors import PermissionDenied
from space.node.guest import SpawnFailed
from space_guest.launch import agent_argv, agent_env

pytestmark = [pytest.mark.anyio, pytest.mark.live]
HERE = Path(__file__).parent
NOBODY = 65534


@pytest.fixture
async def humble(tmp_path, request):
    """A session with an agent that runs as nobody."""
    if os.getuid() != 0:
        pytest.skip("needs root to become somebody else")
    from importlib import util

    spec = util.spec_from_file_location("guest_harness", HERE / "conftest.py")
    harness = util.module_from_spec(spec)
    spec.loader.exec_module(harness)
    if not os.access(harness.SOURCE, os.R_OK):
        pytest.skip("the sources are not readable by others")
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o711)
    tmp_path.chmod(0o777)
    agent = harness.Agent(tmp_path, user=str(NOBODY), run_as=NOBODY)
    session = harness.Session(agent, harness.Recorder())
    async with session.connected():
        yield session
    await agent.stop()
    assert agent.complaints == ""


async def test_without_root_it_serves_its_own_user_and_no_other(humble, tmp_path):
    exited, stdout, _ = await humble.run("id", "-u", user=str(NOBODY), cwd="/")
    assert (exited.exit_code, stdout) == (0, b"65534\n")
    with pytest.raises(SpawnFailed) as caught:
        await humble.start("true", user="root")
    assert caught.value.exit_code == 126

    async def content():
        yield b"x"

    await humble.guest.write_file(str(tmp_path / "mine"), content())
    assert (tmp_path / "mine").stat().st_uid == NOBODY
    with pytest.raises(PermissionDenied):
        await humble.guest.write_file("/root/not-mine", content())
    with pytest.raises(PermissionDenied):
        await humble.guest.remove_file("/etc/passwd")


async def test_it_ends_when_asked_to(agent, session):
    await session.run("true")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(10) == 0


@pytest.mark.parametrize("arguments", [[], ["1", "2"], ["x", "/dev/null", "root"], ["1", "/no/such/token", "root"]])
def test_bad_arguments_end_it_with_a_message(arguments):
    script = f"import sys; sys.path.insert(0, {str(HERE.parents[1] / 'src')!r}); from space_guest.agent import main; "
    ran = subprocess.run(
        [sys.executable, "-I", "-c", script + "sys.exit(main(sys.argv[1:]))", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("space agent: ")
    assert "Traceback" not in ran.stderr


def test_the_token_is_in_no_command_line_and_no_environment():
    argv = agent_argv(7777, "/run/token", "user")
    assert argv[0] == "/.space/lib/ld.so"
    assert argv[-3:] == ["7777", "/run/token", "user"]
    assert set(agent_env()) == {"PYTHONHOME", "LC_ALL"}


def test_starting_imports_little():
    """Each sandbox pays for every import: these three alone would double the start."""
    source = str(HERE.parents[1] / "src")
    script = f"import sys; sys.path.insert(0, {source!r}); import space_guest.agent; print(*sys.modules)"
    python = shutil.which("python3.11", path="/usr/bin") or sys.executable
    modules = subprocess.run([python, "-I", "-S", "-c", script], capture_output=True, text=True, check=True).stdout
    assert not {"asyncio", "typing", "dataclasses", "logging", "ctypes", "tarfile", "subprocess"} & set(modules.split())

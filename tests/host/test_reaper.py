"""Collecting orphans without taking what others wait for."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from space.host import reaper as reaping
from space.host.daemon import start_time_of
from space.host.process import spawn
from space.host.reaper import Reaper, collect, owned

pytestmark = [pytest.mark.anyio, pytest.mark.live]

#: Starts a program in a session of its own, prints its pid and leaves it behind.
ORPHAN = """
import subprocess, sys
# Not with our stdout: whoever reads the pid from it would wait until the orphan has ended.
print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=subprocess.DEVNULL).pid)
"""


@pytest.fixture
async def reaper(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Reaper]:
    monkeypatch.setattr(reaping, "PATIENCE_SECONDS", 0.05)
    async with Reaper() as entered:
        yield entered


def make_orphan(*argv: str) -> int:
    return int(subprocess.run([sys.executable, "-c", ORPHAN, *argv], stdout=subprocess.PIPE, check=True).stdout)


async def gone(pid: int, seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return not Path(f"/proc/{pid}").exists()


async def test_an_orphan_becomes_ours_and_is_reaped(reaper: Reaper) -> None:
    pid = make_orphan("/bin/sleep", "0.1")
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid())
    assert await gone(pid)


async def test_a_registered_orphan_is_left_to_its_owner(reaper: Reaper) -> None:
    pid = make_orphan("/bin/sh", "-c", "sleep 0.05; exit 7")
    owned.add(pid)
    await asyncio.sleep(0.3)
    reaper.sweep()
    await asyncio.sleep(0.1)
    reaper.sweep()
    assert collect(pid) == 7
    owned.discard(pid)


async def test_a_child_that_somebody_has_yet_to_wait_for_keeps_its_status(reaper: Reaper) -> None:
    child = subprocess.Popen(["/bin/sh", "-c", "exit 7"])
    for _ in range(4):
        await asyncio.sleep(0.05)
        reaper.sweep()
    assert child.wait() == 7


async def test_a_spawned_process_keeps_its_status_while_nobody_waits(reaper: Reaper) -> None:
    process = spawn(["/bin/sh", "-c", "exit 8"], new_session=True)
    for _ in range(4):
        await asyncio.sleep(0.05)
        reaper.sweep()
    assert await process.wait() == 8


async def test_orphans_behind_an_uncollected_zombie_are_reaped_too(reaper: Reaper) -> None:
    child = subprocess.Popen(["/bin/true"])
    pids = [make_orphan("/bin/true") for _ in range(3)]
    assert all([await gone(pid) for pid in pids])
    assert child.wait() == 0


async def test_without_the_reaper_this_process_adopts_nobody() -> None:
    async with Reaper():
        pass
    pid = make_orphan("/bin/sleep", "5")
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] != str(os.getpid())
    os.kill(pid, 9)


async def test_collecting_what_is_not_ours_gives_nothing() -> None:
    assert collect(1) is None
    assert start_time_of(os.getpid())

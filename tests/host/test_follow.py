import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from space.host.daemon import start_time_of
from space.host.follow import ProgramFailed, follow

pytestmark = pytest.mark.anyio


async def lines_of(script: str) -> list[str]:
    lines: list[str] = []
    await follow(["sh", "-c", script], on_line=lines.append)
    return lines


async def test_output_and_errors_come_line_by_line() -> None:
    assert await lines_of("echo one; echo two >&2; printf 'no end'") == ["one", "two", "no end"]


async def test_a_carriage_return_ends_a_line_as_progress_bars_mean_it() -> None:
    assert await lines_of("printf '10%%\\r50%%\\r\\n100%%\\n\\n'") == ["10%", "50%", "100%"]


async def test_bytes_that_are_not_utf_8_are_replaced() -> None:
    assert await lines_of("printf '\\377x\\n'") == ["\ufffdx"]


async def test_a_line_without_end_is_cut_and_costs_no_memory() -> None:
    lines = await lines_of("head -c 3000000 /dev/zero | tr '\\0' a; echo")
    assert sum(map(len, lines)) <= 4096


async def test_a_failure_carries_the_last_words() -> None:
    with pytest.raises(ProgramFailed) as caught:
        await lines_of("for i in $(seq 100); do echo $i; done; exit 7")
    assert caught.value.code == 7
    assert caught.value.last_lines == tuple(str(number) for number in range(81, 101))


async def test_a_program_that_does_not_exist_is_file_not_found() -> None:
    with pytest.raises(FileNotFoundError):
        await follow(["/no/such/program"])


async def test_standard_input_is_empty() -> None:
    assert await lines_of("cat; echo end") == ["end"]


async def test_being_cancelled_kills_the_program_and_its_children(tmp_path: Path) -> None:
    started = asyncio.Event()
    pids: list[int] = []

    def take(line: str) -> None:
        pids.extend(map(int, line.split()))
        started.set()

    task = asyncio.create_task(follow(["sh", "-c", "sleep 100 & echo $$ $!; wait"], on_line=take))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _gone(pids)


@pytest.mark.root
async def test_a_contained_program_and_all_that_it_started_die_with_this_process(tmp_path: Path) -> None:
    source = (
        "import asyncio, sys; from space.host.follow import follow\n"
        "asyncio.run(follow(['sh', '-c', 'setsid sleep 100 & echo started; wait'], on_line=print, contained=True))"
    )
    builder = subprocess.Popen(
        [sys.executable, "-uc", source],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    assert builder.stdout is not None
    assert await asyncio.to_thread(builder.stdout.readline) == b"started\n"
    descendants = _descendants(builder.pid)
    assert len(descendants) >= 3  # unshare, sh, sleep
    builder.kill()
    builder.wait()
    builder.stdout.close()
    await _gone(descendants)


def _descendants(pid: int) -> list[int]:
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [*children, *(grandchild for child in children for grandchild in _descendants(child))]


async def _gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(start_time_of(pid) is not None for pid in pids):
        assert time.monotonic() < deadline, "still there"
        await asyncio.sleep(0.01)

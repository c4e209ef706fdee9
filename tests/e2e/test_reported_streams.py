"""Cases 10-13 of the faults that users of similar systems reported: command streams."""

import os
import random
import signal
import subprocess
import threading
import time

import pytest
from tests.e2e.instance import Instance

from space.sdk import Client, Output, ProcessExited, Sandbox, SandboxLost

pytestmark = pytest.mark.root


def numbers(data: bytes) -> list[int]:
    return [int(line) for line in data.split()]


@pytest.mark.parametrize(
    ("pause", "dropped_at", "back_at"),
    [(0.1, 1.0, 18.0), pytest.param(1.0, 10.0, 180.0, marks=[pytest.mark.soak, pytest.mark.timeout(400)])],
)
def test_reconnecting_after_a_long_absence_replays_every_line_once(
    sandbox: Sandbox, pause: float, dropped_at: float, back_at: float
) -> None:
    """Case 10 (E2B#1074): 300 lines; away for most of them."""
    command = sandbox.start(["sh", "-c", f"for i in $(seq 1 300); do echo $i; sleep {pause}; done"])
    begun = time.monotonic()
    received = b""
    position = None
    with command.events() as events:
        for event in events:
            if isinstance(event, Output):
                received += event.data
            position = event.position
            if time.monotonic() - begun > dropped_at:
                break
    assert numbers(received), "the first reader saw something before it left"
    time.sleep(max(0.0, back_at - (time.monotonic() - begun)))
    last = None
    for event in command.events(start=position):
        if isinstance(event, Output):
            received += event.data
        last = event
    assert numbers(received) == list(range(1, 301))
    assert isinstance(last, ProcessExited)
    assert last.exit_code == 0


@pytest.mark.parametrize("times", [10, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_killing_the_data_plane_mid_stream_never_invents_an_exit(instance: Instance, times: int) -> None:
    """Case 11 (cloudflare/sandbox-sdk#873)."""
    lines = 40 * times
    with instance.client() as client, Sandbox.create("base", client=client) as sandbox:
        command = sandbox.start(
            ["sh", "-c", f"i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo $i; sleep 0.05; done; exit 5"],
            detached=True,
        )
        events: list[object] = []
        reader = threading.Thread(target=lambda: events.extend(command.events()))
        reader.start()
        for _ in range(times):
            time.sleep(random.uniform(0.2, 1.0))
            instance.kill_9()
            instance.up()
            exits = [event for event in events if isinstance(event, ProcessExited)]
            state = command.info().state
            assert not exits or state == "exited", f"an exit was told of a process that is {state}"
        reader.join(timeout=120)
        assert not reader.is_alive()
        output = b"".join(event.data for event in events if isinstance(event, Output))
        assert numbers(output) == list(range(1, lines + 1))
        (exited,) = [event for event in events if isinstance(event, ProcessExited)]
        assert exited is events[-1]
        assert exited.exit_code == command.info().exit_code == 5


def test_a_stream_ends_when_the_machine_dies(instance: Instance) -> None:
    """Case 12 (sandbox-sdk#101, #320): the reader is told, and told why."""
    with instance.client() as client:
        sandbox = Sandbox.create("base", client=client)
        command = sandbox.start(["sleep", "600"], detached=True)
        events = iter(command.events())
        next(events)
        (sentry,) = instance.machine_pids(sandbox.id)
        os.kill(sentry, signal.SIGKILL)
        killed = time.monotonic()
        last = list(events)[-1]
        assert isinstance(last, SandboxLost)
        assert time.monotonic() - killed < 10, "the contract of case 12"
        assert command.info().state == "lost"
        while (found := sandbox.refresh()).state == "running":  # the row follows the observation
            time.sleep(0.05)
        assert (found.state, found.reason) == ("failed", "killed")
        sandbox.kill()
        assert instance.machine_pids(sandbox.id) == []


def test_a_detached_command_does_not_hold_its_caller(sandbox: Sandbox) -> None:
    """Case 13 (docker/sbx-releases#505): the answer comes while the process runs."""
    begun = time.monotonic()
    command = sandbox.start(["sleep", "300"], detached=True)
    assert time.monotonic() - begun < 1, "the contract of case 13"
    assert command.info().state == "running"
    command.kill()
    assert command.wait().signal == "SIGKILL"


def test_a_run_survives_the_death_of_every_process_of_space(instance: Instance) -> None:
    """The client reconnects by itself and prints each line once, in order."""
    run = subprocess.Popen(
        instance.argv("run", "--", "sh", "-c", "for i in $(seq 1 15); do echo $i; sleep 1; done"),
        env=instance.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    time.sleep(5)
    instance.kill_9()
    time.sleep(1)
    instance.up()
    output, problems = run.communicate(timeout=60)
    assert numbers(output) == list(range(1, 16)), problems.decode()
    assert run.returncode == 0


def test_a_run_ends_with_the_exit_code_of_its_command(server: Instance) -> None:
    assert server.space("run", "--", "python3", "-c", "print(6*7)").stdout == "42\n"
    assert server.space("run", "--", "sh", "-c", "exit 7", check=False).returncode == 7


def test_a_reader_that_never_comes_costs_nothing_and_loses_nothing(client: Client, sandbox: Sandbox) -> None:
    """64 MiB without a reader; then all of it, replayed."""
    command = sandbox.start(["sh", "-c", "head -c 67108864 /dev/zero"], detached=True)
    assert command.wait().stdout_bytes == 64 << 20
    size = 0
    for event in command.events():
        if isinstance(event, Output):
            assert event.offset == size
            size += len(event.data)
    assert size == 64 << 20

"""Whatever is killed, and when: nothing stays behind, and nothing of another instance is touched."""

import asyncio
import contextlib
import os
import pickle
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from space.core.errors import RuntimeFailed
from space.core.node import MachineHandle
from space.host.process import spawn
from space.testing.conformance.runtime import echo

pytestmark = [pytest.mark.anyio, pytest.mark.root]


async def until(is_so: Callable[[], bool], *, seconds: float = 20) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:  # noqa: ASYNC110 - no event comes from another process
        await asyncio.sleep(0.005)
    assert is_so()


async def test_killing_the_gofer_ends_the_machine(make_host: Callable[..., Any]) -> None:
    host = make_host("echo")
    spec = await host.spec()
    machine = await host.runtime().start(spec)
    await echo(machine, spec)
    os.kill(machine.handle.details["gofer_pid"], signal.SIGKILL)
    async with asyncio.timeout(10):
        assert (await machine.wait()).reason in ("runtime_exited", "killed")
    await machine.stop()
    assert host.leftovers() == []


async def test_killing_the_sentry_leaves_no_gofer_once_stopped(make_host: Callable[..., Any]) -> None:
    host = make_host("echo")
    machine = await host.runtime().start(await host.spec())
    os.kill(machine.handle.pid, signal.SIGKILL)
    await machine.wait()
    await machine.stop()
    assert host.leftovers() == []


async def test_a_first_process_that_ends_is_an_exit_with_its_status(make_host: Callable[..., Any]) -> None:
    host = make_host()
    host.first_process = lambda spec, token_path: (["/bin/sh", "-c", "sleep 0.5; exit 9"], {"PATH": "/bin"})
    machine = await host.runtime().start(await host.spec())
    found = await machine.wait()
    assert (found.reason, found.code) == ("runtime_exited", 9)
    await machine.stop()
    assert host.leftovers() == []


async def test_a_first_process_that_does_not_exist_fails_the_start(make_host: Callable[..., Any]) -> None:
    host = make_host()
    host.first_process = lambda spec, token_path: (["/no/such/program"], {})
    with pytest.raises(RuntimeFailed):
        await host.runtime().start(await host.spec())
    assert host.leftovers() == []


async def test_a_runsc_that_is_missing_fails_the_start(make_host: Callable[..., Any]) -> None:
    host = make_host()
    runtime = host.runtime()
    runtime._runsc.program = "/no/such/runsc"
    with pytest.raises(RuntimeFailed):
        await runtime.start(await host.spec())
    assert host.leftovers() == []


@pytest.mark.parametrize("delay", [0.01, 0.05, 0.1, 0.15])
async def test_a_server_killed_in_the_middle_of_a_start_leaves_what_a_sweep_removes(
    make_host: Callable[..., Any], tmp_path: Path, delay: float
) -> None:
    host = make_host("echo")
    spec = await host.spec()
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    said = tmp_path / "said"
    argv = [sys.executable, str(script), host.instance.id, pickle.dumps(spec).hex(), str(said)]
    with (tmp_path / "errors").open("wb") as errors:
        server = spawn(argv, env={"PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"]}, stderr=errors)
        await until(said.exists)
        await asyncio.sleep(delay)
        await server.stop(grace=0)
    # runsc itself was not killed and may still be at it; the sweep must win over it.
    await host.runtime().sweep(frozenset())
    host.cgroups.sweep(())
    await until(lambda: not host.leftovers())
    assert host.leftovers() == []
    # As the node does: runsc may have taken the slot's addresses already when it was killed.
    await host.network.release(spec.slot.index)
    assert (await host.network.claim()).index == spec.slot.index
    machine = await host.runtime().start(spec)
    assert await echo(machine, spec) == b"hello"
    await machine.stop()


SERVER = textwrap.dedent(
    """
    import asyncio, pathlib, pickle, sys
    from space.host.instance import Instance
    from space.runtimes.gvisor import GVisor

    async def main():
        spec = pickle.loads(bytes.fromhex(sys.argv[2]))
        first = lambda spec, token: (["/bin/nc", "-ll", "-p", str(spec.agent_port), "-e", "/bin/cat"], {"PATH": "/bin"})
        runtime = GVisor(Instance(sys.argv[1]), first_process=first)
        pathlib.Path(sys.argv[3]).touch()
        await runtime.start(spec)
        pathlib.Path(sys.argv[3]).write_text("up")
        await asyncio.sleep(60)

    asyncio.run(main())
    """
)


async def test_a_machine_outlives_the_server_and_is_recovered(make_host: Callable[..., Any], tmp_path: Path) -> None:
    host = make_host("echo")
    spec = await host.spec()
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    said = tmp_path / "said"
    argv = [sys.executable, str(script), host.instance.id, pickle.dumps(spec).hex(), str(said)]
    server = spawn(argv, env={"PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"]})
    await until(lambda: said.exists() and said.read_text() == "up")
    await server.stop(grace=0)
    machine = await host.runtime().start(spec)  # finds it by its id
    assert await echo(machine, spec) == b"hello"
    again = await host.runtime().recover(machine.handle, spec)
    assert again is not None
    os.kill(machine.handle.pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        await again.wait()
    await machine.stop()
    assert host.leftovers() == []


async def test_after_a_reboot_no_stranger_is_taken_for_a_machine(make_host: Callable[..., Any]) -> None:
    host = make_host("echo")
    spec = await host.spec()
    stranger = spawn(["/bin/sleep", "60"])
    assert stranger.start_time is not None
    handle = MachineHandle(
        runtime="gvisor",
        machine_id=spec.machine_id,
        pid=stranger.pid,
        pid_start_time=stranger.start_time,
        details={"boot_id": "00000000-0000-4000-8000-000000000000"},
    )
    assert await host.runtime().recover(handle, spec) is None
    assert stranger.returncode is None
    await stranger.stop(grace=0)


async def test_two_instances_side_by_side_do_not_touch_each_other(make_host: Callable[..., Any]) -> None:
    first, second = make_host("echo"), make_host("echo")
    first_spec, second_spec = await first.spec(), await second.spec()
    # The same id in both, and the same slot index: only the instance differs.
    second_spec = replace(second_spec, machine_id=first_spec.machine_id)
    one = await first.runtime().start(first_spec)
    two = await second.runtime().start(second_spec)
    assert await echo(one, first_spec) == await echo(two, second_spec) == b"hello"
    await second.remove()
    assert second.leftovers() == []
    assert await echo(one, first_spec) == b"hello"
    await one.stop()


async def test_filestores_leave_no_loop_device_while_other_machines_run(make_host: Callable[..., Any]) -> None:
    host = make_host("echo")
    runtime = host.runtime()
    backing = str(host.directory)
    specs = [await host.spec() for _ in range(3)]
    machines = await asyncio.gather(*(runtime.start(spec) for spec in specs))
    held = [path for path in Path("/sys/block").glob("loop*/loop/backing_file") if backing in path.read_text()]
    assert len(held) == 3
    await machines[0].stop()
    await host.filestores.remove(specs[0].slot.index)  # while two others, started later, still run
    held = [path for path in held if path.exists() and backing in path.read_text()]
    assert len(held) == 2
    await asyncio.gather(*(machine.stop() for machine in machines[1:]))
    await host.filestores.sweep(())
    assert not [path for path in held if path.exists() and backing in path.read_text()]


async def test_a_filestore_can_be_removed_under_a_machine_that_runs(make_host: Callable[..., Any]) -> None:
    """Out of order, as a repair after a crash may be: the disk goes when the machine does."""
    host = make_host("echo")
    spec = await host.spec()
    machine = await host.runtime().start(spec)
    await host.filestores.remove(spec.slot.index)
    await machine.stop()
    backing = str(host.directory)
    assert not [path for path in Path("/sys/block").glob("loop*/loop/backing_file") if backing in path.read_text()]


async def test_no_descriptor_of_the_server_leaks_into_a_machine(make_host: Callable[..., Any], tmp_path: Path) -> None:
    host = make_host("echo")
    descriptor = os.open(tmp_path / "inheritable", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(descriptor, True)
    machine = await host.runtime().start(await host.spec())
    os.close(descriptor)
    for pid in host.cgroups.pids(host.instance.slot_cgroup(1)):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                assert "inheritable" not in str(entry.readlink())
    await machine.stop()

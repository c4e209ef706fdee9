"""The five traps of this runsc, each as a test that would fail if we stepped into it again."""

import asyncio
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from space.core.errors import FailedPrecondition, RuntimeFailed
from space.host.process import ProcessFailed, run
from space.host.reaper import zombie_children
from space.runtimes.gvisor import checkpoint, origin
from space.runtimes.gvisor.command import CHECKPOINT, HIDDEN, Runsc
from space.testing.conformance.runtime import echo

pytestmark = [pytest.mark.anyio, pytest.mark.root]


async def test_trap_1_runsc_does_not_see_proc_sys_net_and_the_host_still_does() -> None:
    assert HIDDEN == ("/proc/sys/net",)
    seen = await run(["/bin/ls", "/proc/sys/net"], hidden=HIDDEN)
    assert seen.stdout == b""
    assert Path("/proc/sys/net/ipv4").is_dir()
    assert "/proc/sys/net " not in Path("/proc/self/mountinfo").read_text()


async def test_trap_1_without_hiding_it_an_affected_kernel_refuses_the_network(make_host: Callable[..., Any]) -> None:
    """Fails once runsc no longer needs the workaround on a kernel that shows the file: then it can go."""
    host = make_host("echo")
    spec = await host.spec()
    within = ["ip", "netns", "exec", spec.slot.netns]
    shows = (await run([*within, "ls", "/proc/sys/net/core"])).stdout.split()
    if b"rmem_default" not in shows:
        pytest.skip("this kernel does not show /proc/sys/net/core/rmem_default in namespaces: not affected")
    runtime = host.runtime()
    await (await runtime.start(spec)).stop()
    bundle = spec.state_dir / spec.machine_id
    assert not bundle.exists()
    runsc = Runsc(program="runsc", root=host.directory / "other")
    from space.runtimes.gvisor import bundle as oci

    argv, env = host.first_process(spec, "fd:3")
    directory = oci.write(spec, argv=argv, env=env)
    await host.network.release(spec.slot.index)
    line = runsc.argv("run", "-detach", f"-bundle={directory}", spec.machine_id, filestore=spec.slot.filestore)
    with pytest.raises(ProcessFailed, match="root network namespace"):
        await run(line)
    host.cgroups.remove(spec.slot.cgroup)


async def test_trap_2_a_checkpoint_that_fails_leaves_the_machine_running(make_host: Callable[..., Any]) -> None:
    host = make_host("echo")
    spec = await host.spec()
    runtime = host.runtime()
    machine = await runtime.start(spec)
    assert await echo(machine, spec) == b"hello"
    runsc = runtime._runsc
    image = host.directory / "image"
    image.mkdir()
    (image / "checkpoint.img").write_text("in the way")
    with pytest.raises(ProcessFailed):
        await runsc.call(*CHECKPOINT, f"-image-path={image}", spec.machine_id)
    assert await echo(machine, spec, b"still here") == b"still here"
    await machine.stop()


async def test_trap_1_a_restored_machine_has_a_network_too(make_host: Callable[..., Any], tmp_path: Path) -> None:
    host = make_host("echo")
    spec, other = await host.spec(), await host.spec()
    machine = await host.runtime().start(spec)
    assert await echo(machine, spec) == b"hello"
    await machine.snapshot(tmp_path / "image")
    restored = await host.runtime().start(other, snapshot=tmp_path / "image")
    assert await echo(restored, other) == b"hello"
    await machine.stop()
    await restored.stop()


async def test_trap_2_saving_itself_the_sentry_is_told_to_go_on() -> None:
    assert checkpoint.OPTIONS["Resume"] is True


async def test_trap_2_a_checkpoint_without_leave_running_cannot_be_asked_for() -> None:
    assert "-leave-running" in CHECKPOINT
    with pytest.raises(ValueError, match="not called from here"):
        await Runsc(program="runsc", root=Path("/nonexistent")).call("checkpoint", "-image-path=/tmp/x", "id")


async def test_trap_3_exec_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="not called from here"):
        await Runsc(program="runsc", root=Path("/nonexistent")).call("exec", "id", "true")


async def test_trap_3_a_machine_in_an_exec_session_is_not_saved(make_host: Callable[..., Any], tmp_path: Path) -> None:
    """And was not before: here is what would happen, had somebody saved it all the same."""
    host = make_host("echo")
    spec, other = await host.spec(), await host.spec()
    runtime = host.runtime()
    machine = await runtime.start(spec)
    assert await echo(machine, spec) == b"hello"
    argv = [runtime._runsc.program, f"--root={runtime._runsc.root}", "exec", spec.machine_id, "/bin/sleep", "60"]
    session = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    await asyncio.sleep(1)
    with pytest.raises(FailedPrecondition, match="exec"):
        await machine.snapshot(tmp_path / "refused")
    image = tmp_path / "image"
    await runtime._runsc.call(*CHECKPOINT, f"-image-path={image}", spec.machine_id)
    origin.note(spec, image)
    with pytest.raises(RuntimeFailed):
        await runtime.start(other, snapshot=image)
    session.kill()
    session.wait()
    assert await echo(machine, spec) == b"hello"
    await machine.stop()
    assert host.leftovers() == []


async def test_trap_4_an_id_of_another_length_is_not_restored_either(
    make_host: Callable[..., Any], tmp_path: Path
) -> None:
    host = make_host("echo")
    with pytest.raises(ValueError, match="machine id"):
        await host.runtime().start(replace(await host.spec(), machine_id="d1"), snapshot=tmp_path)
    assert host.leftovers() == []


async def test_trap_4_an_id_of_another_length_never_reaches_runsc(make_host: Callable[..., Any]) -> None:
    host = make_host("echo")
    spec = await host.spec()
    for wrong in ("d1", spec.machine_id + "0", spec.machine_id[:-1], spec.machine_id.upper(), "../" + "a" * 32):
        with pytest.raises(ValueError, match="machine id"):
            await host.runtime().start(replace(spec, machine_id=wrong))
    assert host.leftovers() == []


async def test_trap_4_generations_of_one_sandbox_end_one_at_a_time(make_host: Callable[..., Any]) -> None:
    """Generations 1, 0x10 and 0x1000 of one sandbox: prefixes of one another, were they not padded."""
    host = make_host("echo")
    runtime = host.runtime()
    machines = []
    for generation in (0x1, 0x10, 0x1000):
        spec = await host.spec()
        spec = replace(spec, machine_id=f"sbx{'0' * 26}{generation:06x}")
        machines.append((await runtime.start(spec), spec))
    first, _ = machines[0]
    await first.pause()  # by id, through runsc's own look-up
    await first.stop()
    for machine, spec in machines[1:]:
        assert await echo(machine, spec) == b"hello"
        await machine.pause()
        await machine.stop()
    assert host.leftovers() == []


async def test_trap_5_machines_that_end_together_are_reaped_at_once(make_host: Callable[..., Any]) -> None:
    host = make_host("echo")
    runtime = host.runtime()
    machines = await asyncio.gather(*[runtime.start(await host.spec()) for _ in range(6)])
    start = time.monotonic()
    await asyncio.gather(*(machine.stop() for machine in machines))
    assert time.monotonic() - start < 10  # 0.1 s on an idle machine; without reaping runsc waited for 120 s
    ours = {machine.handle.pid for machine in machines}
    assert not ours.intersection(zombie_children())
    assert host.leftovers() == []


async def test_trap_5_a_sentry_that_dies_is_reaped_by_whoever_waits(make_host: Callable[..., Any]) -> None:
    host = make_host("echo")
    machine = await host.runtime().start(await host.spec())
    await host.kill(machine)
    await machine.wait()
    assert not Path(f"/proc/{machine.handle.pid}").exists()
    await machine.stop()


async def test_trap_5_statuses_of_other_children_are_not_stolen(make_host: Callable[..., Any]) -> None:
    host = make_host("echo")
    child = subprocess.Popen(["/bin/sh", "-c", "exit 7"])
    machine = await host.runtime().start(await host.spec())
    await asyncio.sleep(1.2)  # two sweeps of the reaper
    await machine.stop()
    assert child.wait() == 7
    assert os.getpid()


async def test_trap_5_restored_machines_that_end_together_are_reaped_at_once(
    make_host: Callable[..., Any], tmp_path: Path
) -> None:
    host = make_host("echo")
    spec = await host.spec()
    runtime = host.runtime()
    machine = await runtime.start(spec)
    assert await echo(machine, spec) == b"hello"
    await machine.snapshot(tmp_path / "image")
    specs = [await host.spec() for _ in range(4)]
    machines = [machine, *await asyncio.gather(*(runtime.start(each, snapshot=tmp_path / "image") for each in specs))]
    await asyncio.gather(*(each.stop() for each in machines))
    ours = {each.handle.pid for each in machines} | {each.handle.details["gofer_pid"] for each in machines}
    assert not ours.intersection(zombie_children())
    assert host.leftovers() == []

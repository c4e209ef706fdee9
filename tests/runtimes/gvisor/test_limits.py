"""What a machine may use, and what becomes of one that wants more."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from space.core.sandbox import Resources

pytestmark = [pytest.mark.anyio, pytest.mark.root]

#: A file in a memory filesystem that has no size of its own.
HOG = "dd if=/dev/zero of=/dev/hog bs=1M count=2000"


async def test_a_memory_hog_ends_its_machine_with_reason_oom_and_no_other(make_host: Callable[..., Any]) -> None:
    host = make_host()
    runtime = host.runtime()
    hog = await runtime.start(await host.spec(Resources(memory_mib=128, disk_mib=64)))
    other = await runtime.start(await host.spec())
    assert await host.ask(other, "echo up") == "up\n"
    asking = asyncio.ensure_future(host.ask(hog, HOG, timeout=60))
    async with asyncio.timeout(60):
        assert (await hog.wait()).reason == "oom"
    asking.cancel()
    assert await host.ask(other, "echo still up") == "still up\n"
    await hog.stop()
    await other.stop()
    assert host.leftovers() == []


async def test_a_recovered_machine_that_runs_out_of_memory_says_so_too(make_host: Callable[..., Any]) -> None:
    host = make_host()
    spec = await host.spec(Resources(memory_mib=128, disk_mib=64))
    started = await host.runtime().start(spec)
    machine = await host.runtime().recover(started.handle, spec)
    assert machine is not None
    asking = asyncio.ensure_future(host.ask(machine, HOG, timeout=60))
    async with asyncio.timeout(60):
        assert (await machine.wait()).reason == "oom"
    asking.cancel()
    await machine.stop()


async def test_the_guest_sees_the_memory_that_it_was_given(make_host: Callable[..., Any]) -> None:
    host = make_host()
    machine = await host.runtime().start(await host.spec(Resources(memory_mib=192, disk_mib=64)))
    assert "MemTotal:         196608 kB" in await host.ask(machine, "cat /proc/meminfo")
    await machine.stop()


@pytest.mark.parametrize("place", ["/root/big", "/tmp/big", "/var/big"])
async def test_a_full_disk_is_enospc_in_the_guest_and_leaves_it_alive(
    make_host: Callable[..., Any], place: str
) -> None:
    host = make_host()
    machine = await host.runtime().start(await host.spec(Resources(memory_mib=256, disk_mib=64)))
    said = await host.ask(machine, f"mkdir -p /var; dd if=/dev/zero of={place} bs=1M count=200 2>&1; ls -l {place}")
    assert "No space left on device" in said
    written = int(said.splitlines()[-1].split()[4])
    assert 60 << 20 <= written <= 66 << 20
    # The space of one overlay comes back to another a moment after the removal.
    again = (
        'for i in 1 2 3 4 5 6 7 8 9; do [ works = "$(cat /root/again)" ] && break; '
        "sleep 0.3; echo works >/root/again; done"
    )
    assert await host.ask(machine, f"rm {place}; touch /root/again; {again}; cat /root/again") == "works\n"
    await machine.stop()


async def test_a_disk_is_full_sized_again_for_the_next_machine(make_host: Callable[..., Any]) -> None:
    host = make_host()
    runtime = host.runtime()
    spec = await host.spec(Resources(memory_mib=256, disk_mib=64))
    machine = await runtime.start(spec)
    await host.ask(machine, "dd if=/dev/zero of=/root/big bs=1M count=60 2>&1; echo secret >/root/secret")
    await machine.stop()
    await host.filestores.remove(spec.slot.index)
    await host.filestores.create(spec.slot.index, 64)
    assert list(spec.slot.filestore.iterdir()) == []


async def test_shared_memory_has_a_limit_below_the_machines(make_host: Callable[..., Any]) -> None:
    host = make_host()
    machine = await host.runtime().start(await host.spec())
    said = await host.ask(machine, "dd if=/dev/zero of=/dev/shm/big bs=1M count=300 2>&1; echo alive")
    assert "No space left on device" in said
    assert "alive" in said
    await machine.stop()


async def test_a_busy_guest_gets_no_more_cpu_than_it_was_given(make_host: Callable[..., Any]) -> None:
    host = make_host()
    spec = await host.spec(Resources(vcpus=1, memory_mib=256, disk_mib=64))
    machine = await host.runtime().start(spec)
    await host.ask(machine, "true")
    before = (await machine.stats())["cpu_seconds"]
    stream = await machine.connect(spec.agent_port)
    await stream.send(b"for i in 1 2 3 4; do while :; do :; done & done\n")
    await asyncio.sleep(2)
    used = (await machine.stats())["cpu_seconds"] - before
    await stream.aclose()
    assert used < 2 * 1.25  # two cores would give 4
    await machine.stop()


async def test_hundreds_of_processes_are_no_more_than_the_backstop_allows(make_host: Callable[..., Any]) -> None:
    host = make_host()
    machine = await host.runtime().start(await host.spec(Resources(memory_mib=512, disk_mib=64)))
    said = await host.ask(
        machine, "i=0; while [ $i -lt 300 ]; do sleep 30 & i=$((i+1)); done; ps | wc -l; kill $(jobs -p)"
    )
    assert int(said.split()[0]) >= 300
    assert await host.ask(machine, "echo alive") == "alive\n"
    await machine.stop()


async def test_limits_are_set_where_the_kernel_reads_them(make_host: Callable[..., Any]) -> None:
    host = make_host()
    spec = await host.spec(Resources(vcpus=2, memory_mib=256, disk_mib=64))
    machine = await host.runtime().start(spec)
    directories = host.cgroups.directories(spec.slot.cgroup)
    assert int((directories["pids"] / "pids.max").read_text()) >= 4000
    assert host.cgroups.pids(spec.slot.cgroup) >= {machine.handle.pid, machine.handle.details["gofer_pid"]}
    if not host.cgroups.is_v2:
        assert int((directories["cpu"] / "cpu.cfs_quota_us").read_text()) == 200_000
    await machine.stop()
    assert not any(Path(directory).exists() for directory in directories.values())

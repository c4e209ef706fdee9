"""What every runtime must do, whatever it isolates with.

A test module subclasses `RuntimeConformance` and gives a `host` fixture.  The host's guests answer on the agent's
port with what they receive; two ports above they count their callers, whom they tell their number: each is greater than
the one before, as long as the guest's memory lasts.  Nothing else is asked of them, so the suite needs no guest agent.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from space.core.errors import GuestUnreachable, RuntimeFailed
from space.core.node import Exit, MachineSpec
from space.core.ports import Machine, Runtime

Result = TypeVar("Result")


class RuntimeHost(Protocol):
    """A host on which the suite starts machines."""

    def runtime(self) -> Runtime:
        """Return a runtime as a freshly started node would have it: it knows nothing of earlier ones."""
        ...

    async def spec(self) -> MachineSpec:
        """Return a machine to start, in a slot of its own."""
        ...

    async def kill(self, machine: Machine) -> None:
        """Kill the machine from outside, as `kill -9` of its process would."""
        ...

    def leftovers(self) -> Sequence[str]:
        """Return what machines have left in the kernel and on the disk of this host: processes, groups, files."""
        ...


async def eventually(attempt: Callable[[], Awaitable[Result]], *, seconds: float = 20) -> Result:
    """Repeat what raises `GuestUnreachable` until it does not, as a node does while a guest boots."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await attempt()
        except GuestUnreachable:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.005)


async def echo(machine: Machine, spec: MachineSpec, message: bytes = b"hello") -> bytes:
    """Send a message to the guest and return its answer, once it answers at all."""
    return await eventually(lambda: _ask(machine, spec.agent_port, message))


async def count(machine: Machine, spec: MachineSpec) -> int:
    """Call the guest that counts; return the number that it gave."""
    return int(await eventually(lambda: _ask(machine, spec.agent_port + 2, b"")))


async def _ask(machine: Machine, port: int, message: bytes) -> bytes:
    """Return the answer: as long as the message or, to none, all until it hangs up.

    One that hangs up at once is taken for a server that is just starting anew, as busybox's is after each interruption.
    """
    stream = await machine.connect(port)
    answer = b""
    try:
        async with asyncio.timeout(20):
            if message:
                await stream.send(message)
            while (not message or len(answer) < len(message)) and (data := await stream.receive()):
                answer += data
    except ConnectionError:
        answer = b""
    finally:
        await stream.aclose()
    if not answer:
        raise GuestUnreachable("it hung up")
    return answer


@pytest.mark.anyio
class RuntimeConformance:
    """The suite, but for `SnapshotConformance`."""

    async def test_a_guest_answers_on_its_port(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        assert await echo(machine, spec) == b"hello"
        await machine.stop()

    async def test_bulk_data_arrives_whole_in_both_directions(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        stream = await eventually(lambda: machine.connect(spec.agent_port))
        block = bytes(range(256)) * 1024
        received = bytearray()

        async def receive() -> None:
            while len(received) < 16 * len(block) and (data := await stream.receive()):
                received.extend(data)

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            tasks.create_task(receive())
            for _ in range(16):
                await stream.send(block)
        assert received == block * 16
        await stream.aclose()
        await machine.stop()

    async def test_a_handle_names_the_machine_and_its_runtime(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        runtime = host.runtime()
        machine = await runtime.start(spec)
        assert machine.handle.machine_id == spec.machine_id
        assert machine.handle.runtime == runtime.name
        await machine.stop()

    async def test_starting_twice_gives_one_machine(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        runtime = host.runtime()
        first, second = await asyncio.gather(runtime.start(spec), runtime.start(spec))
        assert first.handle == second.handle
        await first.stop()
        assert await second.wait() == await first.wait()
        assert host.leftovers() == []

    async def test_a_start_that_fails_leaves_nothing(self, host: RuntimeHost) -> None:
        spec = replace(await host.spec(), rootfs=Path("/nonexistent"))
        with pytest.raises(RuntimeFailed):
            await host.runtime().start(spec)
        assert host.leftovers() == []

    async def test_an_id_may_be_started_again_after_a_failure(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        runtime = host.runtime()
        with pytest.raises(RuntimeFailed):
            await runtime.start(replace(spec, rootfs=Path("/nonexistent")))
        machine = await runtime.start(spec)
        assert await echo(machine, spec) == b"hello"
        await machine.stop()

    async def test_a_second_start_does_not_take_away_what_a_third_has_started(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        runtime = host.runtime()
        broken = replace(spec, rootfs=Path("/nonexistent"))
        first = asyncio.ensure_future(runtime.start(broken))
        others = [asyncio.ensure_future(runtime.start(spec)) for _ in range(2)]
        with pytest.raises(RuntimeFailed):
            await first
        others.append(asyncio.ensure_future(runtime.start(spec)))
        machines = await asyncio.gather(*others)
        assert len({machine.handle.pid for machine in machines}) == 1
        assert await echo(machines[0], spec) == b"hello"
        await machines[0].stop()
        assert host.leftovers() == []

    async def test_a_start_that_is_cancelled_leaves_nothing(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        runtime = host.runtime()
        starting = asyncio.ensure_future(runtime.start(spec))
        await asyncio.sleep(0.03)
        starting.cancel()
        try:
            machine = await starting
        except asyncio.CancelledError:
            pass
        else:  # it was quicker
            await machine.stop()
        assert host.leftovers() == []

    async def test_stopping_leaves_no_process_group_or_file(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        await machine.stop()
        assert host.leftovers() == []
        assert list(spec.state_dir.iterdir()) == []

    async def test_stopping_a_machine_that_boots_works(self, host: RuntimeHost) -> None:
        runtime = host.runtime()
        specs = [await host.spec() for _ in range(3)]
        machines = await asyncio.gather(*(runtime.start(spec) for spec in specs))
        await asyncio.gather(*(machine.stop() for machine in machines))
        assert host.leftovers() == []

    async def test_stopping_twice_and_at_once_succeeds(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        await asyncio.gather(machine.stop(), machine.stop())
        await machine.stop()
        assert (await machine.wait()).reason == "stopped"

    async def test_stopping_with_grace_ends_it_too(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        assert await echo(machine, spec) == b"hello"
        await machine.stop(grace=0.2)
        assert (await machine.wait()).reason == "stopped"
        assert host.leftovers() == []

    async def test_several_tasks_may_wait_and_wait_again(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        waiting = [asyncio.ensure_future(machine.wait()) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting)
        await machine.stop()
        exits = {await task for task in waiting} | {await machine.wait()}
        assert {found.reason for found in exits} == {"stopped"}

    async def test_a_machine_that_is_killed_from_outside_is_noticed(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        waiting = asyncio.ensure_future(machine.wait())
        await host.kill(machine)
        async with asyncio.timeout(5):
            assert await waiting == Exit(reason="killed", code=-9)
        await machine.stop()
        assert host.leftovers() == []

    async def test_an_ended_machine_cannot_be_reached(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        await machine.stop()
        with pytest.raises(GuestUnreachable):
            await machine.connect(spec.agent_port)

    async def test_a_port_where_nothing_listens_is_unreachable(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        await echo(machine, spec)
        with pytest.raises(GuestUnreachable):
            await machine.connect(spec.agent_port + 1)
        await machine.stop()

    async def test_a_new_node_recovers_what_an_old_one_started(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        old = await host.runtime().start(spec)
        assert await echo(old, spec) == b"hello"
        machine = await host.runtime().recover(old.handle, spec)
        assert machine is not None
        assert machine.handle == old.handle
        assert await echo(machine, spec, b"again") == b"again"
        await machine.stop()
        assert host.leftovers() == []

    async def test_starting_after_a_restart_gives_the_machine_that_runs(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        old = await host.runtime().start(spec)
        machine = await host.runtime().start(spec)
        assert machine.handle == old.handle
        await machine.stop()
        assert host.leftovers() == []

    async def test_a_machine_that_ended_is_not_recovered(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        await host.kill(machine)
        await machine.wait()
        assert await host.runtime().recover(machine.handle, spec) is None
        await machine.stop()

    async def test_a_sweep_removes_all_but_what_it_should_keep(self, host: RuntimeHost) -> None:
        runtime = host.runtime()
        kept, lost = await host.spec(), await host.spec()
        machine = await runtime.start(kept)
        other = await runtime.start(lost)
        assert list(await host.runtime().sweep(frozenset({kept.machine_id}))) == [lost.machine_id]
        async with asyncio.timeout(5):
            await other.wait()
        assert await echo(machine, kept) == b"hello"
        assert await host.runtime().sweep(frozenset({kept.machine_id})) == []
        await machine.stop()
        await other.stop()
        assert host.leftovers() == []

    async def test_a_paused_guest_is_silent_until_it_is_resumed(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        runtime = host.runtime()
        machine = await runtime.start(spec)
        if not (await runtime.probe()).pause:
            pytest.skip("the runtime says that it cannot pause")
        stream = await eventually(lambda: machine.connect(spec.agent_port))
        await stream.send(b"early")
        assert await stream.receive() == b"early"
        await machine.pause()
        await machine.pause()
        await stream.send(b"late")
        answer = asyncio.ensure_future(stream.receive())
        await asyncio.sleep(0.3)
        assert not answer.done(), answer
        await machine.resume()
        await machine.resume()
        async with asyncio.timeout(20):
            assert await answer == b"late"
        await stream.aclose()
        await machine.stop()

    async def test_pausing_twice_and_resuming_once_or_what_runs_does_no_harm(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        if not (await host.runtime().probe()).pause:
            pytest.skip("the runtime says that it cannot pause")
        await machine.resume()
        await machine.pause()
        again = await host.runtime().recover(machine.handle, spec)
        assert again is not None, "found by the next process of the node"
        await again.pause()
        await again.resume()
        await again.resume()
        assert await echo(again, spec) == b"hello"
        await again.stop()

    async def test_a_paused_machine_can_be_stopped(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        await echo(machine, spec)
        await machine.pause()
        await machine.stop()
        assert host.leftovers() == []

    async def test_stats_tell_cpu_memory_and_processes(self, host: RuntimeHost) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        stats = await machine.stats()
        assert {"cpu_seconds", "memory_bytes", "pids"} <= stats.keys()
        assert stats["pids"] >= 1
        await machine.stop()

    async def test_probing_takes_less_than_a_second(self, host: RuntimeHost) -> None:
        start = time.monotonic()
        found = await host.runtime().probe()
        assert time.monotonic() - start < 1
        assert found.is_available
        assert found.version

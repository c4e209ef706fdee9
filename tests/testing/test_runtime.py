"""The fake runtime passes the suite, and fails when a test asks it to."""

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from space.core.errors import GuestUnreachable, InsufficientStorage, RuntimeFailed
from space.core.node import Exit, MachineSpec, Slot
from space.core.ports import Machine
from space.core.sandbox import Resources
from space.testing.conformance.runtime import RuntimeConformance
from space.testing.conformance.snapshot import SnapshotConformance
from space.testing.runtime import FakeFileStores, FakeHost, FakeNetwork, FakeRuntime, memory_streams

pytestmark = pytest.mark.anyio


class Host:
    """A `FakeHost` with slots."""

    def __init__(self, directory: Path) -> None:
        self.fake = FakeHost()
        self.network = FakeNetwork()
        self.directory = directory

    def runtime(self) -> FakeRuntime:
        return FakeRuntime(self.fake)

    async def spec(self) -> MachineSpec:
        network = await self.network.claim()
        state_dir = self.directory / f"m{network.index}"
        state_dir.mkdir()
        slot = Slot(
            index=network.index,
            netns=network.netns,
            gateway_netns=network.gateway_netns,
            guest_ip=network.guest_ip,
            gateway_ip=network.gateway_ip,
            prefix_length=network.prefix_length,
            filestore=self.directory,
            cgroup=f"/fake/m{network.index}",
        )
        return MachineSpec(
            machine_id=f"sbx{uuid.uuid4().hex}",
            rootfs=self.directory,
            slot=slot,
            resources=Resources(),
            agent_dir=self.directory,
            token="token",
            agent_port=7000,
            state_dir=state_dir,
        )

    async def kill(self, machine: Machine) -> None:
        self.fake.exit(machine.handle.machine_id, "killed", -9)

    def leftovers(self) -> Sequence[str]:
        return sorted(self.fake.machines)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


class TestFakeRuntime(RuntimeConformance, SnapshotConformance):
    pass


async def test_a_start_fails_on_demand_and_once(host: Host) -> None:
    spec = await host.spec()
    host.fake.fail_next_start("no memory")
    with pytest.raises(RuntimeFailed, match="no memory"):
        await host.runtime().start(spec)
    await (await host.runtime().start(spec)).stop()


async def test_a_machine_ends_on_demand_with_a_reason(host: Host) -> None:
    spec = await host.spec()
    machine = await host.runtime().start(spec)
    stream = await machine.connect(spec.agent_port)
    host.fake.exit(spec.machine_id, "oom", -9)
    assert await machine.wait() == Exit(reason="oom", code=-9)
    assert await stream.receive() == b""


async def test_a_machine_can_be_made_unreachable(host: Host) -> None:
    spec = await host.spec()
    machine = await host.runtime().start(spec)
    host.fake.unreachable.add(spec.machine_id)
    with pytest.raises(GuestUnreachable):
        await machine.connect(spec.agent_port)


async def test_a_slow_start_takes_its_time(host: Host) -> None:
    host.fake.start_seconds = 0.05
    starting = asyncio.ensure_future(host.runtime().start(await host.spec()))
    await asyncio.sleep(0.01)
    assert not starting.done()
    await (await starting).stop()


async def test_a_stream_holds_its_sender_back_while_nobody_reads() -> None:
    near, far = memory_streams()
    sending = asyncio.ensure_future(near.send(bytes(4 << 20)))
    await asyncio.sleep(0.01)
    assert not sending.done()
    received = 0
    while received < 4 << 20:
        received += len(await far.receive())
    await sending
    await near.aclose()
    assert await far.receive() == b""


async def test_sending_into_a_closed_stream_is_an_error() -> None:
    near, far = memory_streams()
    await far.aclose()
    with pytest.raises(ConnectionResetError):
        await near.send(b"x")


async def test_a_swept_network_keeps_what_it_should() -> None:
    kernel: set[int] = set()
    before = FakeNetwork(kernel)
    await before.prepare(3)
    kept = await before.claim()
    after = FakeNetwork(kernel)
    assert await after.sweep({kept.index}) == [2, 3]
    assert (await after.claim()).index != kept.index


async def test_a_full_host_refuses_filestores(tmp_path: Path) -> None:
    stores = FakeFileStores(tmp_path / "stores")
    await stores.create(1, 64)
    stores.is_full = True
    with pytest.raises(InsufficientStorage):
        await stores.create(2, 64)
    assert await stores.sweep(()) == [1]

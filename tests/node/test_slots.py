from pathlib import Path

import anyio
import pytest
from tests.node.harness import eventually

from space.core.errors import CapacityUnavailable, InsufficientStorage
from space.node.slots import Slots
from space.testing.runtime import FakeCgroups, FakeFileStores, FakeNetwork, FakeSlotNetwork

pytestmark = pytest.mark.anyio


class Place:
    """Slots over fakes, and the fakes."""

    def __init__(self, directory: Path, network: FakeNetwork | None = None) -> None:
        self.network = network or FakeNetwork()
        self.filestores = FakeFileStores(directory)
        self.cgroups = FakeCgroups()
        self.slots = Slots(
            networks=self.network,
            filestores=self.filestores,
            cgroups=self.cgroups,
            cgroup_of=lambda index: f"/fake/m{index}",
            ahead=3,
            disk_mib=100,
        )


async def test_slots_are_prepared_ahead_and_refilled(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.slots.restore([])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(place.slots.run)
        await eventually(lambda: len(place.slots._ready) == 3)
        slots = [await place.slots.claim(disk_mib=100) for _ in range(5)]
        assert len({slot.index for slot in slots}) == 5
        assert all(slot.filestore.is_dir() for slot in slots)
        await eventually(lambda: len(place.slots._ready) == 3)
        tasks.cancel_scope.cancel()


async def test_giving_a_slot_back_again_does_not_take_it_from_the_next_machine(tmp_path: Path) -> None:
    place = Place(tmp_path)
    first = await place.slots.claim(disk_mib=7)
    await place.slots.release(first)
    second = await place.slots.claim(disk_mib=7)
    assert second.index == first.index
    place.cgroups.existing.add(second.cgroup)
    await place.slots.release(first)
    assert second.filestore.is_dir()
    assert place.cgroups.existing == {second.cgroup}


async def test_a_disk_of_another_size_is_made_when_it_is_claimed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    slot = await place.slots.claim(disk_mib=7)
    assert slot.filestore.is_dir()
    assert slot.cgroup == f"/fake/m{slot.index}"


async def test_a_released_slot_loses_its_disk_and_its_network_is_used_again(tmp_path: Path) -> None:
    place = Place(tmp_path)
    slot = await place.slots.claim(disk_mib=7)
    place.cgroups.existing.add(slot.cgroup)
    await place.slots.release(slot)
    await place.slots.release(slot)
    assert not slot.filestore.exists()
    assert not place.cgroups.existing
    again = await place.slots.claim(disk_mib=7)
    assert again.index == slot.index
    assert place.network.existing == {slot.index}


async def test_a_full_disk_is_told_and_leaves_no_network_claimed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.filestores.is_full = True
    with pytest.raises(InsufficientStorage):
        await place.slots.claim(disk_mib=7)
    assert place.network.free == 1
    place.filestores.is_full = False
    await place.slots.claim(disk_mib=7)


async def test_after_a_restart_only_the_slots_of_machines_are_kept(tmp_path: Path) -> None:
    before = Place(tmp_path)
    kept, lost = [await before.slots.claim(disk_mib=7) for _ in range(2)]
    place = Place(tmp_path, FakeNetwork(before.network.existing))
    place.cgroups.existing = {kept.cgroup, lost.cgroup}
    await place.slots.restore([kept])
    assert [path.name for path in tmp_path.iterdir()] == [str(kept.index)]
    assert place.cgroups.existing == {kept.cgroup}
    assert (await place.slots.claim(disk_mib=7)).index != kept.index


async def test_a_sweep_spares_what_is_claimed_ready_or_being_made(tmp_path: Path) -> None:
    class Slow(FakeFileStores):
        async def create(self, index: int, disk_mib: int) -> Path:
            path = await super().create(index, disk_mib)
            await anyio.sleep(0.05)
            return path

    place = Place(tmp_path)
    place.slots._filestores = Slow(tmp_path)
    claimed = []

    async def claim() -> None:
        claimed.append(await place.slots.claim(disk_mib=7))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(claim)
            tasks.start_soon(place.slots.sweep)
            await anyio.sleep(0.01)
    await place.slots.sweep()
    assert all(slot.filestore.is_dir() for slot in claimed)
    assert len({slot.index for slot in claimed}) == 10


async def test_the_refill_survives_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("space.node.slots._RETRY_SECONDS", 0.01)

    class Full(FakeNetwork):
        refusals = 3

        async def claim(self) -> FakeSlotNetwork:
            if self.refusals:
                self.refusals -= 1
                raise CapacityUnavailable("no network is free")
            return await super().claim()

    place = Place(tmp_path, Full())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(place.slots.run)
        await eventually(lambda: len(place.slots._ready) == 3)
        tasks.cancel_scope.cancel()


async def test_a_burst_of_machines_leaves_no_more_networks_than_are_kept_ready(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for slot in [await place.slots.claim(disk_mib=100) for _ in range(7)]:
        await place.slots.release(slot)
    await place.slots.sweep()
    assert len(place.network.existing) == 3

import errno
import os
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from tests.node.conftest import Ids

from space.core.errors import InsufficientStorage, RuntimeFailed, StaleGeneration
from space.core.node import MachineRef
from space.node.generations import KEEP_TOMBSTONES, Generations, Phase
from space.testing.clock import FakeClock

pytestmark = pytest.mark.anyio
STRANGE = b"sbx06h2v706mpp9b1vekab8l3q4hc \0 go\0 17\0"


def load(path: Path, clock: FakeClock | None = None) -> Generations:
    generations = Generations(path, clock or FakeClock())
    generations.load()
    return generations


async def test_what_was_recorded_is_known_after_a_restart(tmp_path: Path, ids: Ids) -> None:
    generations = load(tmp_path / "g")
    ref, gone, ended = ids.ref(3), ids.ref(5), ids.ref(1)
    await generations.record(ref, Phase.UP)
    await generations.record(gone, Phase.GONE)
    await generations.record(ended, Phase.ENDED)
    for known in (generations, load(tmp_path / "g")):
        known.admit(ref)
        known.admit(replace(ref, generation=4))
        for stale in (replace(ref, generation=2), replace(gone, generation=4), gone):
            with pytest.raises(StaleGeneration):
                known.admit(stale)
        known.check(ended)
        with pytest.raises(RuntimeFailed):
            known.admit(ended)
        known.admit(replace(ended, generation=2))
        known.close()


async def test_nothing_goes_backwards(tmp_path: Path, ids: Ids) -> None:
    generations = load(tmp_path / "g")
    ref = ids.ref(3)
    await generations.record(ref, Phase.GONE)
    await generations.record(ref, Phase.UP)
    await generations.record(replace(ref, generation=2), Phase.UP)
    entry = generations.get(ref.sandbox_id)
    assert entry is not None
    assert (entry.generation, entry.phase) == (3, Phase.GONE)
    generations.close()


@pytest.mark.parametrize(
    "tail", [b"sbx", b"sbx06h2v706mpp9b1vekab8l3q4hc 4 gon", b"\0\0\0\0", b"x y z w\n", STRANGE, STRANGE + b"\n"]
)
async def test_a_torn_or_strange_line_is_left_out(tmp_path: Path, ids: Ids, tail: bytes) -> None:
    generations = load(tmp_path / "g")
    ref = ids.ref(3)
    await generations.record(ref, Phase.GONE)
    generations.close()
    with (tmp_path / "g").open("ab") as file:
        file.write(tail)
    again = load(tmp_path / "g")
    with pytest.raises(StaleGeneration):
        again.check(ref)
    other = ids.ref(1)
    await again.record(other, Phase.GONE)
    again.close()
    third = load(tmp_path / "g")
    with pytest.raises(StaleGeneration):
        third.check(other)
    third.close()


async def test_old_tombstones_go_and_the_file_stays_small(
    tmp_path: Path, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("space.node.generations.COMPACT_BYTES", 20_000)
    clock = FakeClock()
    generations = load(tmp_path / "g", clock)
    old, kept = ids.ref(1), ids.ref(1)
    await generations.record(old, Phase.GONE)
    for generation in range(1, 2_000):
        await generations.record(replace(kept, generation=generation), Phase.UP)
    assert (tmp_path / "g").stat().st_size < 21_000
    generations.close()
    clock.advance(KEEP_TOMBSTONES + 1)
    again = load(tmp_path / "g", clock)
    assert again.get(old.sandbox_id) is None
    assert again.get(kept.sandbox_id) is not None
    again.close()


async def test_neither_file_nor_memory_grows_with_the_sandboxes_that_were(
    tmp_path: Path, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("space.node.generations.COMPACT_BYTES", 2_000)
    clock = FakeClock()
    generations = load(tmp_path / "g", clock)
    for _ in range(300):
        ref = ids.ref(1)
        for phase in (Phase.SEEN, Phase.UP, Phase.GONE):
            await generations.record(ref, phase)
        clock.advance(KEEP_TOMBSTONES / 10)
    assert len(generations._known) < 40
    assert (tmp_path / "g").stat().st_size < 6_000
    generations.close()


async def test_a_compaction_that_finds_the_disk_full_refuses_nothing(
    tmp_path: Path, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("space.node.generations.COMPACT_BYTES", 10)
    generations = load(tmp_path / "g")
    with monkeypatch.context() as patch:

        def no_room(path: Path, target: Path) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(Path, "replace", no_room)
        refs = [ids.ref(1) for _ in range(5)]
        for ref in refs:
            await generations.record(ref, Phase.GONE)
    generations.close()
    again = load(tmp_path / "g")
    for ref in refs:
        with pytest.raises(StaleGeneration):
            again.check(ref)
    again.close()


async def test_it_starts_on_a_full_disk_and_goes_on_once_there_is_room(
    tmp_path: Path, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = ids.ref(1), ids.ref(1)
    first = load(tmp_path / "g")
    await first.record(one, Phase.GONE)
    first.close()
    with (tmp_path / "g").open("ab") as file:
        file.write(b"sbx06h2v706mpp9b1vekab8l3q4hc 4 gon")
    with monkeypatch.context() as patch:

        def no_room(fd: int, data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "write", no_room)
        again = load(tmp_path / "g")
    with pytest.raises(StaleGeneration):
        again.check(one)
    await again.record(two, Phase.GONE)
    again.close()
    third = load(tmp_path / "g")
    for ref in (one, two):
        with pytest.raises(StaleGeneration):
            third.check(ref)
    third.close()


async def test_many_at_once_are_all_on_disk_when_they_return(tmp_path: Path, ids: Ids) -> None:
    generations = load(tmp_path / "g")
    refs = [ids.ref(1) for _ in range(200)]
    async with anyio.create_task_group() as tasks:
        for ref in refs:
            tasks.start_soon(generations.record, ref, Phase.GONE)
    lines = (tmp_path / "g").read_text().splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(ref.sandbox_id for ref in refs)
    generations.close()


async def test_a_full_disk_is_told_and_tears_nothing(tmp_path: Path, ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    generations = load(tmp_path / "g")
    one, two, three = ids.ref(1), ids.ref(1), ids.ref(1)
    await generations.record(one, Phase.GONE)
    with monkeypatch.context() as patch:

        def half(fd: int, data: bytes) -> int:
            if len(data) < 40:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return os.pwrite(fd, data[: len(data) // 2], os.fstat(fd).st_size)

        patch.setattr(os, "write", half)
        refused = []

        async def record(ref: MachineRef) -> None:
            with pytest.raises(InsufficientStorage):
                await generations.record(ref, Phase.GONE)
            refused.append(ref)

        async with anyio.create_task_group() as tasks:
            for ref in (two, ids.ref(1), ids.ref(1)):
                tasks.start_soon(record, ref)
        assert len(refused) == 3
        with pytest.raises(StaleGeneration):
            generations.check(two)
    await generations.record(three, Phase.GONE)
    await generations.record(two, Phase.GONE)  # tried again, it is written now
    generations.close()
    again = load(tmp_path / "g")
    for ref in (one, two, three):
        with pytest.raises(StaleGeneration):
            again.check(ref)
    again.close()

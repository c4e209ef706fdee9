import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from tests.node.harness import World, order

from space.core.errors import FailedPrecondition, GuestUnreachable, NotFound, StaleGeneration
from space.core.node import MachineRef

pytestmark = [pytest.mark.anyio, pytest.mark.live]


async def chunks(data: bytes, size: int = 50_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [0, 1, 4095, 18_433, 131_073, (1 << 20) + 1])
async def test_files_are_written_and_read_whole(world: World, tmp_path: Path, size: int) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        data = os.urandom(size)
        path = str(tmp_path / "deep/er/file")
        written = await node.write_file(machine.ref, path, chunks(data), mode=0o640)
        assert (written.size, written.mode) == (size, 0o640)
        async with node.read_file(machine.ref, path) as (info, content):
            assert info.size == size
            assert b"".join([chunk async for chunk in content]) == data
        async with node.read_file(machine.ref, path, start=size // 2, length=10) as (_, content):
            assert b"".join([chunk async for chunk in content]) == data[size // 2 : size // 2 + 10]


async def test_directories_moves_and_archives(world: World, tmp_path: Path) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        base = str(tmp_path / "place")
        await node.make_directory(machine.ref, f"{base}/a/b")
        await node.write_file(machine.ref, f"{base}/a/b/one", chunks(b"one"))
        await node.move_file(machine.ref, f"{base}/a/b/one", f"{base}/a/two")
        assert [info.path for info in await node.list_files(machine.ref, base, depth=2)] == [
            f"{base}/a",
            f"{base}/a/b",
            f"{base}/a/two",
        ]
        async with node.read_archive(machine.ref, f"{base}/a") as content:
            tar = b"".join([chunk async for chunk in content])
        await node.write_archive(machine.ref, f"{base}/copy", chunks(tar))
        assert (tmp_path / "place/copy/two").read_bytes() == b"one"
        assert (await node.stat_file(machine.ref, f"{base}/copy/two")).size == 3
        await node.remove_file(machine.ref, base, recursive=True)
        with pytest.raises(NotFound):
            await node.stat_file(machine.ref, base)


async def test_errors_are_typed(world: World, tmp_path: Path) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        with pytest.raises(NotFound):
            async with node.read_file(machine.ref, str(tmp_path / "none")):
                pass
        with pytest.raises(FailedPrecondition):
            async with node.read_file(machine.ref, str(tmp_path)):
                pass
        with pytest.raises(NotFound):
            await node.stat_file(MachineRef(machine.ref.sandbox_id, 2), "/")
        await node.remove(machine.ref)
        with pytest.raises(StaleGeneration):
            await node.stat_file(machine.ref, "/")


async def test_slow_transfers_leave_room_for_other_file_operations(world: World, tmp_path: Path) -> None:
    async with world.running(file_concurrency=2) as node:
        machine = order()
        await node.ensure(machine)
        (tmp_path / "big").write_bytes(os.urandom(4 << 20))
        expected = hashlib.sha256((tmp_path / "big").read_bytes()).digest()
        finished = []

        async def download() -> None:
            async with node.read_file(machine.ref, str(tmp_path / "big")) as (_, content):
                digest = hashlib.sha256()
                async for chunk in content:
                    digest.update(chunk)
                    await anyio.sleep(0.05)
                finished.append(digest.digest())

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(download)
            await anyio.sleep(0.1)
            with anyio.fail_after(30):
                for _ in range(5):
                    await node.stat_file(machine.ref, str(tmp_path / "big"))
            assert not finished
        assert finished == [expected] * 5


async def test_a_download_whose_machine_dies_ends_with_an_error(world: World, tmp_path: Path) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        (tmp_path / "big").write_bytes(bytes(32 << 20))

        async def download() -> None:
            async with node.read_file(machine.ref, str(tmp_path / "big")) as (_, content):
                await anext(content)
                world.agents.kill(machine.ref.machine_id)
                async for _chunk in content:
                    pass

        with pytest.raises(GuestUnreachable):
            await download()


async def test_stats_are_the_hosts_where_it_measures(world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        stats = await node.stats(machine.ref)
        assert stats["memory_bytes"] == 0.0  # the fake host says so; the guest's kernel says otherwise
        assert stats["disk_total_bytes"] > 0

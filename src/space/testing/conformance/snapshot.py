"""What every runtime must do that can save machines: see `runtime.py` for the hosts and their guests."""
# ruff: noqa: ASYNC240 - the files are few and small

import asyncio
import shutil
from pathlib import Path

import pytest

from space.core.errors import RuntimeFailed
from space.testing.conformance.runtime import RuntimeHost, count, echo


@pytest.mark.anyio
class SnapshotConformance:
    """The suite for `Machine.snapshot` and for starts from what it wrote."""

    @pytest.fixture
    def image(self, tmp_path: Path) -> Path:
        """Where a snapshot may be written."""
        return tmp_path / "image"

    async def test_a_saved_machine_goes_on_elsewhere(self, host: RuntimeHost, image: Path) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        assert await echo(machine, spec) == b"hello"
        for _ in range(3):
            before = await count(machine, spec)
        await machine.snapshot(image)
        await machine.stop()
        shutil.rmtree(spec.state_dir)
        assert host.leftovers() == []
        other = await host.spec()
        restored = await host.runtime().start(other, snapshot=image)
        assert restored.handle.machine_id == other.machine_id
        shutil.rmtree(image)
        assert await echo(restored, other, b"again") == b"again"
        assert await count(restored, other) > before
        await restored.stop()
        assert list(other.state_dir.iterdir()) == []
        assert host.leftovers() == []

    async def test_a_machine_goes_on_after_it_was_saved(self, host: RuntimeHost, image: Path) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        before = await count(machine, spec)
        await machine.snapshot(image)
        assert await count(machine, spec) > before
        await machine.snapshot(image.with_name("second"))
        assert await echo(machine, spec) == b"hello"
        await machine.stop()

    async def test_a_paused_machine_is_saved_and_stays_paused(self, host: RuntimeHost, image: Path) -> None:
        spec, other = await host.spec(), await host.spec()
        machine = await host.runtime().start(spec)
        assert await echo(machine, spec) == b"hello"
        await machine.pause()
        await machine.snapshot(image)
        restored = await host.runtime().start(other, snapshot=image)
        assert await echo(restored, other) == b"hello"
        await restored.stop()
        answer = asyncio.ensure_future(echo(machine, spec, b"late"))
        await asyncio.sleep(0.3)
        assert not answer.done(), answer
        await machine.resume()
        assert await answer == b"late"
        await machine.stop()

    async def test_a_snapshot_that_fails_leaves_the_machine_and_nothing_else(
        self, host: RuntimeHost, image: Path
    ) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        before = await count(machine, spec)
        with pytest.raises(RuntimeFailed):
            await machine.snapshot(image / "without" / "a parent")
        assert not image.exists()
        assert await count(machine, spec) > before
        await machine.snapshot(image)
        await machine.stop()

    async def test_a_snapshot_never_touches_a_directory_that_exists(self, host: RuntimeHost, image: Path) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        image.mkdir()
        (image / "mine").write_text("kept")
        with pytest.raises(RuntimeFailed):
            await machine.snapshot(image)
        assert [(path.name, path.read_text()) for path in image.iterdir()] == [("mine", "kept")]
        assert await echo(machine, spec) == b"hello"
        await machine.stop()

    async def test_several_machines_go_on_from_one_moment(self, host: RuntimeHost, image: Path) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        for _ in range(3):
            before = await count(machine, spec)
        await machine.snapshot(image)
        written = {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in image.iterdir()}
        specs = [await host.spec() for _ in range(2)]
        runtime = host.runtime()
        children = await asyncio.gather(*(runtime.start(each, snapshot=image) for each in specs))
        assert {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in image.iterdir()} == written
        for child, each in zip((machine, *children), (spec, *specs), strict=True):
            assert await echo(child, each) == b"hello"
            assert await count(child, each) > before
        await asyncio.gather(*(each.stop() for each in (machine, *children)))
        assert host.leftovers() == []

    async def test_a_restored_machine_can_be_saved_again(self, host: RuntimeHost, image: Path) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        seen = await count(machine, spec)
        for number in range(3):
            place = image.with_name(f"image-{number}")
            await machine.snapshot(place)
            await machine.stop()
            spec = await host.spec()
            machine = await host.runtime().start(spec, snapshot=place)
            shutil.rmtree(place)
            now = await count(machine, spec)
            assert now > seen
            seen = now
        await machine.stop()
        assert host.leftovers() == []

    async def test_a_restored_machine_is_recovered_paused_and_noticed_as_any_other(
        self, host: RuntimeHost, image: Path
    ) -> None:
        spec, other = await host.spec(), await host.spec()
        machine = await host.runtime().start(spec)
        await echo(machine, spec)
        await machine.snapshot(image)
        await machine.stop()
        old = await host.runtime().start(other, snapshot=image)
        restored = await host.runtime().recover(old.handle, other)
        assert restored is not None
        assert await echo(restored, other) == b"hello"
        assert {"cpu_seconds", "memory_bytes", "pids"} <= (await restored.stats()).keys()
        await restored.pause()
        await restored.resume()
        assert await echo(restored, other) == b"hello"
        await host.kill(restored)
        async with asyncio.timeout(5):
            assert (await restored.wait()).reason == "killed"
        await restored.stop()
        assert host.leftovers() == []

    async def test_starting_from_a_snapshot_twice_gives_one_machine(self, host: RuntimeHost, image: Path) -> None:
        spec, other = await host.spec(), await host.spec()
        machine = await host.runtime().start(spec)
        await echo(machine, spec)
        await machine.snapshot(image)
        await machine.stop()
        runtime = host.runtime()
        first, second = await asyncio.gather(*(runtime.start(other, snapshot=image) for _ in range(2)))
        assert first.handle == second.handle
        assert (await host.runtime().start(other, snapshot=image)).handle == first.handle
        await first.stop()
        assert host.leftovers() == []

    async def test_what_is_no_snapshot_starts_nothing(self, host: RuntimeHost, image: Path) -> None:
        spec = await host.spec()
        image.mkdir()
        for place in (image, image / "missing"):
            with pytest.raises(RuntimeFailed):
                await host.runtime().start(spec, snapshot=place)
        assert host.leftovers() == []
        assert list(spec.state_dir.iterdir()) == []
        machine = await host.runtime().start(spec)
        assert await echo(machine, spec) == b"hello"
        await machine.stop()

    async def test_a_restore_that_is_cancelled_leaves_nothing(self, host: RuntimeHost, image: Path) -> None:
        spec, other = await host.spec(), await host.spec()
        machine = await host.runtime().start(spec)
        await echo(machine, spec)
        await machine.snapshot(image)
        await machine.stop()
        starting = asyncio.ensure_future(host.runtime().start(other, snapshot=image))
        await asyncio.sleep(0.06)
        starting.cancel()
        try:
            machine = await starting
        except asyncio.CancelledError:
            pass
        else:  # it was quicker
            await machine.stop()
        assert host.leftovers() == []

    async def test_a_machine_that_ended_cannot_be_saved(self, host: RuntimeHost, image: Path) -> None:
        spec = await host.spec()
        machine = await host.runtime().start(spec)
        await machine.stop()
        with pytest.raises(RuntimeFailed):
            await machine.snapshot(image)
        assert not image.exists()

    async def test_a_runtime_that_saves_machines_names_its_format(self, host: RuntimeHost) -> None:
        found = await host.runtime().probe()
        assert found.memory_snapshot
        assert found.snapshot_format
        assert found.snapshot_format == (await host.runtime().probe()).snapshot_format

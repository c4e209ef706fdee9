"""A node that is killed anywhere while it makes or opens a moment goes on, or begins anew, and mixes nothing up."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.node.snapshots.harness import META, Node, contents, order, pages, ref

from space.core.snapshot import SnapshotOrder, SnapshotRef
from space.storage.objects import DirectoryObjects

pytestmark = [pytest.mark.anyio, pytest.mark.live]

FILES = {
    "machine/pages.img": pages(range(1200)),
    "machine/checkpoint.img": pages(range(5000, 5100)),
    "journals/a": b"x",
}
AFTER = {**FILES, "machine/pages.img": pages([*range(600), *range(2000, 2600)])}
PLACES = [
    "plan.after_rename", "plan.after_hashing", "plan.after_naming", "plan.before_plan", "plan.done",
    "upload.before_chunk", "upload.after_chunk", "upload.before_chunk:3", "upload.after_chunks",
    "upload.after_manifest", "upload.after_result", "upload.after_rename",
]  # fmt: skip

_CHILD = """
import asyncio, sys
from pathlib import Path
from space.core.snapshot import SnapshotOrder, SnapshotRef
from space.host.failpoint import failpoint
from space.node.snapshots import Images
from space.storage.objects import DirectoryObjects

async def main():
    root, snapshot_id, project_id, key, base_id, manifest = sys.argv[1:]
    objects = DirectoryObjects(Path(root, "objects"))
    images = Images(Path(root, "node/snapshots"), objects, cache_bytes=1 << 30)
    base = SnapshotRef(snapshot_id=base_id, project_id=project_id, manifest=manifest, key=bytes.fromhex(key))
    if snapshot_id == "-":
        async with images.open(base):
            failpoint("open.done")
        return
    order = SnapshotOrder(snapshot_id=snapshot_id, project_id=project_id, key=bytes.fromhex(key), base=base)
    await images.plan(order, Path(root, "node/checkpoint"), {"token": "very-secret", "sessions": [["ses", 1]]})
    failpoint("plan.done")
    await images.upload(order)

asyncio.run(main())
"""


def run_until(place: str, root: Path, base: SnapshotRef, made: SnapshotOrder | None = None) -> None:
    """Let another process work on the node's directory until it kills itself at `place`."""
    name, _, count = place.partition(":")
    argv = [
        sys.executable, "-c", _CHILD, str(root), made.snapshot_id if made else "-", base.project_id, base.key.hex(),
        base.snapshot_id, base.manifest,
    ]  # fmt: skip
    environment = {**os.environ, "SPACE_FAILPOINT": f"{name}:kill:{count or 1}"}
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


@pytest.mark.parametrize("place", PLACES)
async def test_a_moment_survives_a_kill_at(place: str, tmp_path: Path) -> None:
    node = Node(tmp_path / "node", DirectoryObjects(tmp_path / "objects"))
    base, _ = await node.save(FILES)
    made = order(base)
    node.source(AFTER)
    await asyncio.to_thread(run_until, place, tmp_path, base, made)
    again = node.restarted()
    plan = await again.planned(made)
    if place.startswith("plan.") and place != "plan.done":
        assert plan is None
    if plan is None:  # the machine still runs, or stands still: it is saved again
        plan = await again.plan(made, node.source(AFTER), META)
    result = await again.upload(made)
    assert set(map(bytes.fromhex, [result.manifest])) <= set(plan.chunks)
    assert await node.load(ref(made, result)) == AFTER
    assert await Node(tmp_path / "far", node.objects).load(ref(made, result)) == AFTER
    assert {name for name in node.left() if name.startswith(("staging", "incoming"))} == set()


@pytest.mark.parametrize("place", ["open.after_chunk", "open.after_chunk:3", "open.before_rename", "open.done"])
async def test_opening_survives_a_kill_at(place: str, tmp_path: Path) -> None:
    objects = DirectoryObjects(tmp_path / "objects")
    made, _ = await Node(tmp_path / "first", objects).save(FILES)
    await asyncio.to_thread(run_until, place, tmp_path, made)
    node = Node(tmp_path / "node", objects)
    assert {name for name in node.left() if name.startswith("incoming/")} == set()
    assert await node.load(made) == FILES


@pytest.mark.soak
async def test_kills_at_any_moment_lose_and_mix_nothing(tmp_path: Path) -> None:
    """Not at chosen places: after random times, a hundred times in a row, each on top of the last."""
    node = Node(tmp_path / "node", DirectoryObjects(tmp_path / "objects"))
    files = dict(FILES)
    base, _ = await node.save(files)
    for round_ in range(100):
        files["machine/pages.img"] = pages([*range(round_, round_ + 1000), *range(100)])
        made = order(base)
        node.source(files)
        argv = [
            sys.executable, "-c", _CHILD, str(tmp_path), made.snapshot_id, base.project_id, base.key.hex(),
            base.snapshot_id, base.manifest,
        ]  # fmt: skip
        child = subprocess.Popen(argv)
        await asyncio.sleep(0.3 + 0.005 * round_)
        child.kill()
        child.wait()
        again = node.restarted()
        if await again.planned(made) is None:
            await again.plan(made, node.source(files), META)
        base = ref(made, await again.upload(made))
        async with again.open(base) as image:
            assert contents(image.path) == files
        if round_ % 10 == 0:
            assert await Node(tmp_path / f"far-{round_}", node.objects).load(base) == files

"""Whatever is saved on top of whatever, wherever it is opened: every moment stays what it was."""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.node.snapshots.harness import PAGE, Node, page

from space.core.snapshot import SnapshotRef
from space.testing.objects import FakeObjects


@dataclass(frozen=True)
class Edit:
    """Change a range of pages, then the length."""

    start: int
    count: int
    seed: int  #: pages of equal seeds are equal; 0: zeros
    length: int  #: bytes


@dataclass(frozen=True)
class Save:
    base: int  #: which of the moments so far; none yet: none
    has_base: bool
    node: int
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Load:
    moment: int
    node: int


@dataclass(frozen=True)
class Discard:
    moment: int
    node: int


@dataclass(frozen=True)
class Restart:
    node: int


nodes = st.integers(0, 1)
edits = st.builds(
    Edit,
    start=st.integers(0, 600),
    count=st.integers(0, 300),
    seed=st.integers(0, 4),
    length=st.integers(0, 700 * PAGE),
)
saves = st.builds(
    Save, base=st.integers(0, 9), has_base=st.booleans(), node=nodes, edits=st.lists(edits, max_size=3).map(tuple)
)
steps = st.lists(
    saves
    | st.builds(Load, moment=st.integers(0, 9), node=nodes)
    | st.builds(Discard, moment=st.integers(0, 9), node=nodes)
    | st.builds(Restart, node=nodes),
    min_size=2,
    max_size=12,
)


def edited(memory: bytes, edit: Edit) -> bytes:
    new = b"".join(page(edit.seed, number % 50) if edit.seed else bytes(PAGE) for number in range(edit.count))
    at = edit.start * PAGE
    memory = memory.ljust(at, b"\0")
    return (memory[:at] + new + memory[at + len(new) :])[: edit.length].ljust(edit.length // 2, b"\0")


@given(steps, st.sampled_from([0, 2 << 20, 1 << 30]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_history_of_moments_is_kept(history: list[Save | Load | Discard | Restart], cache_bytes: int) -> None:
    asyncio.run(_play(history, cache_bytes))


async def _play(history: list[Save | Load | Discard | Restart], cache_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        objects = FakeObjects()
        hosts = [Node(Path(directory) / f"node-{number}", objects, cache_bytes=cache_bytes) for number in range(2)]
        moments: list[tuple[SnapshotRef, dict[str, bytes]]] = []
        for step in history:
            node = hosts[step.node]
            if isinstance(step, Save):
                base = moments[step.base % len(moments)] if moments else None
                memory = base[1]["machine/pages.img"] if base is not None else b""
                for edit in step.edits:
                    memory = edited(memory, edit)
                files = {"machine/pages.img": memory, "journals/a": memory[:77] * 3}
                made, result = await node.save(files, base[0] if base is not None and step.has_base else None)
                assert result.bytes_read == sum(map(len, files.values()))
                moments.append((made, files))
            elif isinstance(step, Restart):
                await node.images.aclose()
                node.restarted()
            elif moments:
                made, files = moments[step.moment % len(moments)]
                if isinstance(step, Load):
                    assert await node.load(made) == files
                else:
                    await node.images.discard(made.snapshot_id)
        hosts.append(Node(Path(directory) / "last", objects))
        for made, files in moments:
            assert await hosts[-1].load(made) == files
        for node in hosts:
            await node.images.aclose()

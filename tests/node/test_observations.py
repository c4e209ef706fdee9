import anyio
import pytest
from tests.node.conftest import Ids

from space.core.node import Exit
from space.core.ports import MachineExited
from space.node.observations import Observations

pytestmark = pytest.mark.anyio


async def test_what_nobody_takes_waits_and_the_newest_word_counts(ids: Ids) -> None:
    observations = Observations()
    one, two = ids.ref(), ids.ref()
    observations.put(MachineExited(ref=one, exit=Exit(reason="first")))
    observations.put(MachineExited(ref=two, exit=Exit(reason="other")))
    for _ in range(1000):
        observations.put(MachineExited(ref=one, exit=Exit(reason="last")))
    taken = observations.take()
    found = [await anext(taken) for _ in range(2)]
    assert [(item.ref, item.exit.reason) for item in found if isinstance(item, MachineExited)] == [
        (two, "other"),
        (one, "last"),
    ]


async def test_the_consumer_waits_for_what_comes(ids: Ids) -> None:
    observations = Observations()
    found = []

    async def consume() -> None:
        async for observation in observations.take():
            found.append(observation)
            if len(found) == 3:
                return

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            for _ in range(3):
                await anyio.sleep(0.01)
                observations.put(MachineExited(ref=ids.ref(), exit=Exit(reason="oom")))

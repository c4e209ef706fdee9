"""Timelines and watches."""

import asyncio

import pytest

from space.core.errors import InvalidTransition
from space.core.event import Event
from space.core.lifecycle import Kind
from space.core.sandbox import Sandbox
from space.core.store import Store
from space.testing.conformance.store.made import a_new, a_running, success
from space.testing.rows import PROJECT, START, change


@pytest.mark.anyio
class EventConformance:
    """Tests of events and of waiting for commits."""

    async def test_events_count_from_one_without_gaps_for_each_sandbox(self, store: Store) -> None:
        one, two = await a_running(store), await a_running(store)

        def event(sandbox: Sandbox, number: int) -> Event:
            return Event(
                project_id=PROJECT,
                sandbox_id=sandbox.id,
                operation_id=None,
                type="test",
                data={"n": number},
                at=START,
            )

        await asyncio.gather(*(store.events.append(event(sandbox, n)) for n in range(20) for sandbox in (one, two)))
        for sandbox in (one, two):
            events = await store.events.read(sandbox.id, after=0, limit=100)
            assert [each.seq for each in events] == list(range(1, 23))
            assert [each.data["n"] for each in events[2:]] == list(range(20))
            assert [each.seq for each in await store.events.read(sandbox.id, after=5, limit=2)] == [6, 7]

    async def test_a_watch_hears_of_every_commit_that_touches_its_topic(self, store: Store) -> None:
        sandbox, operation = await a_new(store)
        with store.watch(operation.id) as of_operation, store.watch(sandbox.id) as of_sandbox:
            await store.operations.finish(operation, success())
            async with asyncio.timeout(5):
                await of_operation.wait(60)  # it happened before we waited: not missed
                await of_sandbox.wait(60)
            with store.watch("sbx") as other:
                begun = asyncio.get_running_loop().time()
                await other.wait(0.01)
                assert asyncio.get_running_loop().time() - begun < 5

    async def test_a_refused_write_wakes_nobody(self, store: Store) -> None:
        sandbox = await a_running(store)
        with store.watch(sandbox.id) as watch:
            waiting = asyncio.create_task(watch.wait(0.2))
            with pytest.raises(InvalidTransition):
                await store.sandboxes.change(change(sandbox, Kind.CREATE))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await waiting

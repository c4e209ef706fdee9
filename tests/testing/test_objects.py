"""The fake object store passes the suite, and fails when a test asks it to."""

import asyncio

import pytest

from space.core.errors import Unavailable
from space.testing.conformance.objects import ObjectStoreConformance
from space.testing.objects import FakeObjects, Fault

pytestmark = pytest.mark.anyio


@pytest.fixture
def objects() -> FakeObjects:
    return FakeObjects()


class TestFakeObjects(ObjectStoreConformance):
    """The suite."""


async def test_it_fails_at_the_call_it_was_told_to(objects: FakeObjects) -> None:
    objects.fail("put", at=2, times=1)
    await objects.put("a", b"1")
    with pytest.raises(Unavailable):
        await objects.put("b", b"2")
    await objects.put("c", b"3")
    assert set(objects.objects) == {"a", "c"}


async def test_it_can_do_what_it_says_it_did_not(objects: FakeObjects) -> None:
    objects.fail("put", fault=Fault.LOSE_ANSWER)
    with pytest.raises(Unavailable):
        await objects.put("a", b"1")
    assert objects.objects == {"a": b"1"}


@pytest.mark.parametrize(("fault", "got"), [(Fault.TRUNCATE, b"12"), (Fault.CORRUPT, b"1224")])
async def test_it_damages_what_is_read(objects: FakeObjects, fault: Fault, got: bytes) -> None:
    await objects.put("a", b"1234")
    objects.fail("get", times=1, fault=fault)
    assert await objects.get("a") == got
    assert await objects.get("a") == b"1234"


async def test_it_hangs_until_it_is_released(objects: FakeObjects) -> None:
    objects.fail("head", fault=Fault.HANG)
    waiting = asyncio.ensure_future(objects.head("a"))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    objects.heal()
    assert await waiting is None

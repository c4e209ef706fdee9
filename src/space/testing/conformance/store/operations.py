"""Leases on operations."""

import asyncio

import pytest

from space.core.errors import StaleVersion
from space.core.operation import Status
from space.core.store import Store
from space.testing.conformance.store.made import SECOND, a_new, success
from space.testing.rows import START, lease


@pytest.mark.anyio
class OperationConformance:
    """Tests of who drives an operation."""

    async def test_nobody_claims_what_is_leased_until_the_lease_ran_out(self, store: Store) -> None:
        _, operation = await a_new(store)
        assert await store.operations.claim(lease("two"), now=START + 14 * SECOND, limit=9) == []
        later = START + 15 * SECOND
        claimed = await store.operations.claim(lease("two", at=later), now=later, limit=9)
        assert [(row.id, row.lease_owner, row.attempt) for row in claimed] == [(operation.id, "two", 2)]
        assert await store.operations.claim(lease("three", at=later), now=later, limit=9) == []
        with pytest.raises(StaleVersion):
            await store.operations.finish(operation, success())
        await store.operations.finish(claimed[0], success())

    async def test_the_same_owner_with_an_older_claim_is_fenced_too(self, store: Store) -> None:
        _, operation = await a_new(store)
        later = START + 20 * SECOND
        (claimed,) = await store.operations.claim(lease("one", at=later), now=later, limit=9)
        with pytest.raises(StaleVersion):
            await store.operations.renew(operation, lease("one", at=later))
        await store.operations.renew(claimed, lease("one", at=later))

    async def test_renewing_moves_the_end_and_keeps_the_step(self, store: Store) -> None:
        _, operation = await a_new(store)
        stepped = await store.operations.finish_step(operation, "first", lease=lease())
        assert stepped.step == "first"
        await store.operations.renew(operation, lease(at=START + 10 * SECOND))
        assert await store.operations.claim(lease("two"), now=START + 20 * SECOND, limit=9) == []
        (claimed,) = await store.operations.claim(lease("two"), now=START + 25 * SECOND, limit=9)
        assert claimed.step == "first"

    async def test_a_postponed_operation_waits_and_keeps_its_error(self, store: Store) -> None:
        _, operation = await a_new(store)
        await store.operations.postpone(operation, until=START + 5 * SECOND, error={"code": "internal"})
        row = await store.operations.find(operation.id)
        assert row is not None
        assert (row.status, row.error, row.lease_owner) == (Status.QUEUED, {"code": "internal"}, None)
        assert await store.operations.claim(lease("two"), now=START + 4 * SECOND, limit=9) == []
        (claimed,) = await store.operations.claim(lease("two"), now=START + 5 * SECOND, limit=9)
        assert claimed.status is Status.RUNNING

    async def test_claims_are_bounded_and_never_given_twice(self, store: Store) -> None:
        for _ in range(10):
            await a_new(store)
        later = START + 60 * SECOND
        parts = await asyncio.gather(
            *(store.operations.claim(lease(str(n), at=later), now=later, limit=3) for n in range(5))
        )
        ids = [row.id for part in parts for row in part]
        assert [len(part) for part in parts] == [3, 3, 3, 1, 0]
        assert len(set(ids)) == 10

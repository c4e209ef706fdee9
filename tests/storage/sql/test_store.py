"""The SQLite store keeps the promises of the port."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from space.core.errors import StaleVersion
from space.core.lifecycle import Kind
from space.core.operation import Status
from space.core.store import Outcome, Store
from space.storage.sql.store import open_store
from space.testing.conformance.store import StoreConformance, add_projects
from space.testing.rows import START, change, creation, publication, succeed

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = open_store(tmp_path / "space.db")
    await add_projects(store)
    yield store
    await store.aclose()


class TestSqlStore(StoreConformance):
    pass


async def test_what_the_collector_has_taken_is_not_published(tmp_path: Path) -> None:
    """No way leads there; the last transaction of a suspend looks all the same."""
    store = open_store(tmp_path / "space.db")
    await add_projects(store)
    made = creation()
    await store.sandboxes.create(made)
    sandbox = await succeed(store, made.operation)
    changed = await store.sandboxes.change(change(sandbox, Kind.SUSPEND))
    await store._writer.run(lambda tx: tx.execute("UPDATE snapshots SET state = 'deleting', pins = x''") and None)
    assert changed.operation.snapshot_id is not None
    published = publication(changed.operation.snapshot_id)
    with pytest.raises(StaleVersion):
        await store.operations.finish(
            changed.operation, Outcome(status=Status.SUCCEEDED, at=START, published=published)
        )
    assert (await store.sandboxes.find(sandbox.id)) == changed.sandbox
    await store.aclose()

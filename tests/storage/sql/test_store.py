"""The SQLite store keeps the promises of the port."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from space.core.store import Store
from space.storage.sql.store import open_store
from space.testing.conformance.store import StoreConformance, add_projects


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = open_store(tmp_path / "space.db")
    await add_projects(store)
    yield store
    await store.aclose()


class TestSqlStore(StoreConformance):
    pass

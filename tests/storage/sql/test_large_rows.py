"""Rows whose size callers choose: they come in smaller pages and are not kept in memory."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from space.core.store import SandboxFilter
from space.storage.sql import sandboxes
from space.storage.sql.store import SqlStore, open_store
from space.testing.conformance.store import add_projects
from space.testing.rows import PROJECT, START, creation, entry

pytestmark = pytest.mark.anyio
SIZE = 5000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    store = open_store(tmp_path / "space.db")
    await add_projects(store)
    yield store
    await store.aclose()


async def made(store: SqlStore, count: int) -> list[str]:
    rows = [creation(metadata={"large": "x" * SIZE}) for _ in range(count)]
    for row in rows:
        await store.sandboxes.create(row)
    return [row.sandbox.id for row in rows]


@pytest.mark.parametrize("filters", [{}, {"newest_first": False}])
async def test_a_list_of_large_sandboxes_has_smaller_pages(
    store: SqlStore, filters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxes, "_PAGE_BYTES", 20 * SIZE)
    monkeypatch.setattr(sandboxes, "_READ_AT_ONCE", 25)
    where = replace(SandboxFilter(), **filters)
    ids = await made(store, 60)
    found: list[str] = []
    sizes: list[int] = []
    cursor: str | None = None
    while True:
        page = await store.sandboxes.list(PROJECT, where, limit=1000, cursor=cursor)
        found += [sandbox.id for sandbox in page.items]
        sizes.append(len(page.items))
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == sorted(ids, reverse=where.newest_first)
    assert sizes == [25, 25, 10]


async def test_large_sandboxes_and_pages_of_before_are_not_kept(store: SqlStore) -> None:
    (large,) = await made(store, 1)
    small = creation().sandbox
    await store.sandboxes.create(creation(id=small.id))
    for limit in range(1, 20):
        await store.sandboxes.list(PROJECT, SandboxFilter(), limit=limit, cursor=None)
        await store.sandboxes.update(small.id, PROJECT, at=START, audit=entry(), metadata={"n": str(limit)})
        page = await store.sandboxes.list(PROJECT, SandboxFilter(), limit=limit, cursor=None)
        assert page.items[-1] == await store.sandboxes.find(page.items[-1].id)
    assert (await store.sandboxes.find(large)) is not None
    assert list(store.sandboxes._cache) == [small.id]
    assert len(store.sandboxes._pages) == 1

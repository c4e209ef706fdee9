"""Lists of sandboxes."""

import pytest

from space.core.errors import InvalidRequest
from space.core.lifecycle import Kind
from space.core.store import SandboxFilter, Store
from space.testing.conformance.store.made import SECOND, a_deleted, a_new, a_running, ids
from space.testing.rows import OTHER_PROJECT, PROJECT, START, change, entry


@pytest.mark.anyio
class ListConformance:
    """Tests of filters, pages and cursors."""

    async def test_filters_select_and_deleted_ones_are_left_out(self, store: Store) -> None:
        running = await a_running(store, metadata={"team": "a", "n": "1"})
        creating, _ = await a_new(store, template="other", metadata={"team": "a"}, at=START + SECOND)
        deleted = await a_deleted(store, at=START + 2 * SECOND)
        await a_running(store, project_id=OTHER_PROJECT)
        assert await ids(store) == [creating.id, running.id]
        assert await ids(store, newest_first=False) == [running.id, creating.id]
        assert await ids(store, state="running") == [running.id]
        assert await ids(store, state="creating") == [creating.id]
        assert await ids(store, state="deleted") == [deleted.id]
        assert await ids(store, state="no such state") == []
        assert await ids(store, template="other") == [creating.id]
        assert await ids(store, template=running.template_digest) == [creating.id, running.id]
        assert await ids(store, runtime="fake") == [creating.id, running.id]
        assert await ids(store, runtime="gvisor") == []
        assert await ids(store, metadata={"team": "a"}) == [creating.id, running.id]
        assert await ids(store, metadata={"team": "a", "n": "1"}) == [running.id]
        assert await ids(store, metadata={"team": "%"}) == []
        assert await ids(store, created_after=START + SECOND) == [creating.id]
        assert await ids(store, created_before=START + SECOND) == [running.id]

    @pytest.mark.parametrize("newest_first", [True, False])
    @pytest.mark.parametrize("metadata", [{}, {"k": "v"}])
    async def test_pages_are_whole_and_stable_while_rows_come_and_go(
        self, store: Store, newest_first: bool, metadata: dict[str, str]
    ) -> None:
        made = [await a_running(store, metadata={"k": "v"}) for _ in range(10)]
        where = SandboxFilter(newest_first=newest_first, metadata=metadata)
        seen: list[str] = []
        cursor = None
        for number in range(5):
            page = await store.sandboxes.list(PROJECT, where, limit=3, cursor=cursor)
            seen += [row.id for row in page.items]
            if number == 0:  # new ones and deleted ones do not shift what follows
                await a_running(store, metadata={"k": "v"}, at=START - SECOND if newest_first else START + SECOND)
                await store.sandboxes.change(change(made[5], Kind.DELETE))
            cursor = page.next_cursor
            if cursor is None:
                break
        assert cursor is None
        assert len(seen) == len(set(seen)) == 11
        assert seen == sorted(seen, reverse=newest_first)

    async def test_a_page_that_is_just_full_is_the_last(self, store: Store) -> None:
        for _ in range(3):
            await a_running(store)
        page = await store.sandboxes.list(PROJECT, SandboxFilter(), limit=3, cursor=None)
        assert (len(page.items), page.next_cursor) == (3, None)

    async def test_a_cursor_of_another_filter_or_of_nobody_is_refused(self, store: Store) -> None:
        for _ in range(2):
            await a_running(store)
        page = await store.sandboxes.list(PROJECT, SandboxFilter(), limit=1, cursor=None)
        assert page.next_cursor
        for cursor, where in (
            (page.next_cursor, SandboxFilter(state="running")),
            (page.next_cursor[:-2], SandboxFilter()),
            ("", SandboxFilter()),
            ("ä", SandboxFilter()),
            ("A" * 5000, SandboxFilter()),
            ("\ud800", SandboxFilter()),
        ):
            with pytest.raises(InvalidRequest) as caught:
                await store.sandboxes.list(PROJECT, where, limit=1, cursor=cursor)
            assert caught.value.details["field"] == "cursor"

    async def test_reading_shows_every_committed_write_at_once(self, store: Store) -> None:
        sandbox = await a_running(store)
        for number in range(5):
            metadata = {"n": str(number)}
            await store.sandboxes.update(sandbox.id, PROJECT, at=START, audit=entry(), metadata=metadata)
            found = await store.sandboxes.find(sandbox.id)
            page = await store.sandboxes.list(PROJECT, SandboxFilter(), limit=1, cursor=None)
            assert found == page.items[0]
            assert found is not None
            assert found.metadata == metadata

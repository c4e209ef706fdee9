"""Every query that runs in the event loop or in the writer uses an index: none reads a whole table."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from space.core.lifecycle import Kind
from space.core.operation import Status
from space.core.pool import Pool
from space.core.sandbox import AutoLifecycle, OnIdle, Resources
from space.core.snapshot import Purpose
from space.core.store import Outcome, Room, SandboxFilter
from space.storage.sql import sandbox_list
from space.storage.sql.store import SqlStore, open_store
from space.testing.conformance.store import add_projects
from space.testing.rows import KEY, NODE, PROJECT, START, change, creation, entry, fork, lease, machine, succeed

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    store = open_store(tmp_path / "space.db")
    limits = dict.fromkeys(
        ("max_sandboxes", "max_vcpus", "max_memory_mib", "max_disk_mib", "max_creates_per_minute"), 1 << 30
    )
    await add_projects(store, **limits)
    yield store
    await store.aclose()


WHOLE_ON_PURPOSE = (
    "VIRTUAL TABLE",  # a list of given values
    "SCAN pools",  # a handful
    "SCAN snapshot_collections",  # one row a project
)


def scans(plan: list[tuple[int, int, int, str]]) -> list[str]:
    """Find the parts of a plan that read a whole table."""
    steps = [step[3] for step in plan if step[3].startswith("SCAN")]
    return [step for step in steps if not any(part in step for part in WHOLE_ON_PURPOSE)]


async def test_nothing_that_the_engine_does_reads_a_whole_table(store: SqlStore) -> None:
    statements: set[str] = set()
    for connection in (store._writer._connection, store._reader._connection):
        connection.set_trace_callback(statements.add)
    await _use_everything(store)
    await _use_snapshots(store)
    for connection in (store._writer._connection, store._reader._connection):
        connection.set_trace_callback(None)
    wanted = [sql for sql in statements if sql.split()[0] in ("SELECT", "UPDATE", "DELETE")]
    assert len(wanted) > 60
    for sql in wanted:
        plan = store._reader.rows(f"EXPLAIN QUERY PLAN {sql}")
        assert not scans(plan), (sql, plan)


async def _use_everything(store: SqlStore) -> None:
    room = Room(memory_mib=1 << 20, machines=100)
    auto_lifecycle = AutoLifecycle(idle_seconds=1, on_idle=OnIdle.DELETE)
    for _ in range(3):
        made = creation(metadata={"a": "b"}, auto_lifecycle=auto_lifecycle)
        await store.sandboxes.create(replace(made, room=room))
        await store.operations.renew(made.operation, lease())
        await store.operations.finish_step(made.operation, "a", lease=lease())
        await store.operations.finish(made.operation, Outcome(status=Status.SUCCEEDED, at=START))
    sandbox = await store.sandboxes.find(made.sandbox.id)
    assert sandbox is not None
    later = START + timedelta(hours=1)
    await store.sandboxes.update(sandbox.id, PROJECT, at=START, audit=entry(), metadata={"c": "d"})
    await store.sandboxes.touch({sandbox.id: START})
    await store.sandboxes.desired(NODE)
    await store.sandboxes.overdue(later, limit=10)
    await store.sandboxes.observe_exit(sandbox.id, 1, reason="oom", at=START, data={})
    changed = await store.sandboxes.change(change(sandbox, Kind.DELETE))
    await store.operations.postpone(changed.operation, until=START, error={})
    (claimed,) = await store.operations.claim(lease(), now=later, limit=10)
    await store.operations.finish(claimed, Outcome(status=Status.SUCCEEDED, at=START))
    await store.events.read(sandbox.id, after=0, limit=10)
    for where in (
        SandboxFilter(),
        SandboxFilter(newest_first=False),
        SandboxFilter(state="running"),
        SandboxFilter(metadata={"a": "b"}),
        SandboxFilter(template="base", runtime="fake", created_after=START, created_before=later),
    ):
        page = await store.sandboxes.list(PROJECT, where, limit=1, cursor=None)
        if page.next_cursor:
            await store.sandboxes.list(PROJECT, where, limit=1, cursor=page.next_cursor)
    await store.sandboxes.purge(later, limit=10)


async def _use_snapshots(store: SqlStore) -> None:
    await store.pools.set(Pool(template="base", runtime="fake", resources=Resources(), created_at=START), entry())
    for _ in range(3):
        row = machine()
        await store.pools.add(row)
        await store.pools.parked(row.id, at=START)
    room = Room(memory_mib=1 << 20, machines=100)
    made = replace(creation(), pool=KEY, room=room)
    sandbox = await store.sandboxes.create(made)
    assert sandbox.pooled_id is not None
    sandbox = await succeed(store, made.operation)
    for kind in (Kind.SUSPEND, Kind.WAKE, Kind.SNAPSHOT):
        changed = await store.sandboxes.change(change(sandbox, kind, room=room))
        sandbox = await succeed(store, changed.operation)
    await store.sandboxes.observe_exit(sandbox.id, 2, reason="oom", at=START, data={})
    changed = await store.sandboxes.change(change(sandbox, Kind.RECOVER))
    sandbox = await succeed(store, changed.operation)
    for outcome in (Status.SUCCEEDED, Status.FAILED):
        forked = await store.sandboxes.fork(fork(sandbox, 2))
        if outcome is Status.SUCCEEDED:
            await succeed(store, forked.changed.operation)
        else:
            await store.operations.finish(forked.changed.operation, Outcome(status=outcome, at=START))
    assert await store.snapshots.unwanted(limit=9)
    page = await store.snapshots.list(PROJECT, purpose=Purpose.NAMED, sandbox_id=sandbox.id, limit=9, cursor=None)
    await store.snapshots.list(PROJECT, purpose=None, sandbox_id=None, limit=9, cursor=None)
    await store.snapshots.delete(page.items[0].id, PROJECT, audit=entry())
    for snapshot in await store.snapshots.unwanted(limit=9):
        await store.snapshots.forget(snapshot.id)
    await store.snapshots.begin_collection(PROJECT, until=START, now=START)
    await store.snapshots.end_collection(PROJECT)
    await store.snapshots.projects()
    await store.accounts.project_key(PROJECT, otherwise=b"k")
    for row in await store.pools.machines(NODE):
        await store.pools.retire(row.id)
        await store.pools.forget(row.id)
    await store.pools.list()
    await store.pools.delete("base", audit=entry())


async def test_a_plain_page_is_read_from_its_index_alone(store: SqlStore) -> None:
    sql, parameters = sandbox_list.query(PROJECT, SandboxFilter(), limit=100, cursor=None)
    (step,) = store._reader.rows(f"EXPLAIN QUERY PLAN {sql}", parameters)
    assert "USING COVERING INDEX sandboxes_by_project" in step[3]


async def test_a_filtered_page_needs_no_sorting(store: SqlStore) -> None:
    for where in (SandboxFilter(state="running"), SandboxFilter(template="base"), SandboxFilter(metadata={"a": "b"})):
        sql, parameters = sandbox_list.query(PROJECT, where, limit=100, cursor=None)
        plan = store._reader.rows(f"EXPLAIN QUERY PLAN {sql}", parameters)
        assert not [step for step in plan if "TEMP B-TREE" in step[3]], plan

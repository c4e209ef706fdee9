"""Whatever is admitted and however it ends, in any order: what the rows say of each other stays true."""

import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from space.core.errors import SpaceError
from space.core.ids import SandboxId, SnapshotId
from space.core.lifecycle import Admission, Kind, State
from space.core.operation import Operation, Status
from space.core.sandbox import Sandbox
from space.core.snapshot import DIGEST_BYTES, Published, Purpose
from space.core.store import Changed, Outcome
from space.storage.sql.store import SqlStore, open_store
from space.testing.conformance.store import add_projects
from space.testing.rows import (
    KEY,
    MAKES_SNAPSHOT,
    NODE,
    PROJECT,
    START,
    change,
    creation,
    entry,
    fork,
    lease,
    machine,
    publication,
)

pytestmark = pytest.mark.anyio
NUMBER = st.integers(min_value=0, max_value=99)
KINDS = [kind for kind in Kind if kind not in (Kind.CREATE, Kind.FORK)]
ACTIONS = (
    *("create", "admit", "admit", "admit", "do", "do", "do", "fork", "fork", "finish", "finish", "finish", "fail"),
    *("claim", "claim", "lose_machine", "delete_what_is_held", "collect", "park", "delete_named", "purge", "restart"),
)
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), NUMBER, NUMBER), min_size=60, max_size=120)


class History:
    """Does what the control plane does, a step at a time, and sometimes does not come back."""

    def __init__(self) -> None:
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # nobody pulls the plug here
        self._directory = Path(tempfile.mkdtemp(prefix="histories-", dir=memory))
        self.store = self._open()
        self.sandboxes: list[SandboxId] = []
        self.operations: list[Operation] = []  # as their workers know them

    def _open(self) -> SqlStore:
        return open_store(self._directory / "space.db")

    async def close(self) -> None:
        await self.store.aclose()
        shutil.rmtree(self._directory)

    # What happens; `one` and `two` choose

    async def create(self, one: int, two: int) -> None:
        made = replace(creation(), pool=KEY if one % 2 else None)
        await self.store.sandboxes.create(made)
        self.sandboxes.append(made.sandbox.id)
        self.operations.append(made.operation)

    async def admit(self, one: int, two: int) -> Changed | None:
        sandbox = await self._sandbox(one)
        if sandbox is not None:
            with contextlib.suppress(SpaceError):
                return self._admitted(await self.store.sandboxes.change(change(sandbox, KINDS[two % len(KINDS)])))
        return None

    async def do(self, one: int, two: int) -> None:
        changed = await self.admit(one, two)
        if changed is not None and changed.admission is Admission.START:
            await self._finish(self.operations.pop(), succeeds=True)

    async def fork(self, one: int, two: int) -> None:
        sandbox = await self._sandbox(one)
        if sandbox is not None:
            with contextlib.suppress(SpaceError):
                forked = await self.store.sandboxes.fork(fork(sandbox, 1 + two % 3))
                self.sandboxes += [child.id for child in forked.children if isinstance(child, Sandbox)]
                self._admitted(forked.changed)

    async def delete_what_is_held(self, one: int, two: int) -> None:
        if self.operations:
            sandbox = await self.store.sandboxes.find(self.operations[one % len(self.operations)].sandbox_id)
            if sandbox is not None:
                self._admitted(await self.store.sandboxes.change(change(sandbox, Kind.DELETE)))

    async def finish(self, one: int, two: int) -> None:
        if self.operations:
            await self._finish(self.operations.pop(one % len(self.operations)), succeeds=True)

    async def fail(self, one: int, two: int) -> None:
        if self.operations:
            await self._finish(self.operations.pop(one % len(self.operations)), succeeds=False)

    async def claim(self, one: int, two: int) -> None:
        lapsed = lease("two", seconds=0)
        claimed = await self.store.operations.claim(lapsed, now=START.replace(hour=1), limit=99)
        assert not [operation for operation in claimed if operation.waits_for is not None]
        self.operations += claimed

    async def lose_machine(self, one: int, two: int) -> None:
        sandbox = await self._sandbox(one)
        if sandbox is not None:
            generation = sandbox.generation - two % 2
            await self.store.sandboxes.observe_exit(sandbox.id, generation, reason="oom", at=START, data={})

    async def collect(self, one: int, two: int) -> None:
        for snapshot in await self.store.snapshots.unwanted(limit=99):
            if one % 3:
                await self.store.snapshots.forget(snapshot.id)
        pinned = await self.store.snapshots.begin_collection(PROJECT, until=START, now=START)
        for snapshot_id, pins in self._rows("SELECT id, pins FROM snapshots WHERE state = 'ready'"):
            assert pins in pinned, snapshot_id

    async def park(self, one: int, two: int) -> None:
        row = machine()
        await self.store.pools.add(row)
        await self.store.pools.parked(row.id, at=START)

    async def delete_named(self, one: int, two: int) -> None:
        page = await self.store.snapshots.list(PROJECT, purpose=Purpose.NAMED, sandbox_id=None, limit=99, cursor=None)
        if page.items:
            with contextlib.suppress(SpaceError):  # it is the only state that a sandbox has
                await self.store.snapshots.delete(page.items[one % len(page.items)].id, PROJECT, audit=entry())

    async def purge(self, one: int, two: int) -> None:
        await self.store.sandboxes.purge(START.replace(hour=1), limit=2)

    async def restart(self, one: int, two: int) -> None:
        await self.store.aclose()
        self.store = self._open()

    async def _sandbox(self, one: int) -> Sandbox | None:
        return await self.store.sandboxes.find(self.sandboxes[one % len(self.sandboxes)])

    def _admitted(self, changed: Changed) -> Changed:
        if changed.admission is Admission.START:
            self.operations.append(changed.operation)
        return changed

    async def _finish(self, operation: Operation, *, succeeds: bool) -> None:
        error = None if succeeds else {"code": "internal", "message": "no"}
        outcome = Outcome(status=Status.SUCCEEDED if succeeds else Status.FAILED, at=START, error=error)
        if succeeds and operation.kind in MAKES_SNAPSHOT and operation.snapshot_id is not None:
            outcome = replace(outcome, published=await self._upload(operation.snapshot_id))
        with contextlib.suppress(SpaceError):  # it was preempted, or taken over
            await self.store.operations.finish(operation, outcome)

    async def _upload(self, snapshot_id: SnapshotId) -> Published | None:
        made = await self.store.snapshots.find(snapshot_id)
        if made is not None and made.manifest is not None:  # a suspended sandbox's own: its fork makes none
            return None
        with contextlib.suppress(SpaceError):
            await self.store.snapshots.pin(snapshot_id, snapshot_id.encode().ljust(DIGEST_BYTES), now=START)
        return publication(snapshot_id)

    # What is true

    def _rows(self, sql: str) -> list[Any]:
        return self.store._reader.rows(sql)

    async def check(self) -> None:
        self._every_sandbox_can_return_to_what_it_says()
        self._what_operations_work_with_is_there()
        self._a_held_sandbox_has_one_open_operation_of_its_generation()
        self._children_wait_only_for_forks_that_are_under_way()
        self._timelines_have_no_gaps()
        await self._each_warm_machine_has_one_sandbox()
        await self._what_is_shown_and_when_it_is_idle_follow_from_the_rest()

    def _every_sandbox_can_return_to_what_it_says(self) -> None:
        rows = self._rows(
            "SELECT b.id, b.state, b.restorable, b.snapshot_id, s.state, s.manifest FROM sandboxes b"
            " LEFT JOIN snapshots s ON s.id = b.snapshot_id"
        )
        for sandbox_id, state, restorable, snapshot_id, snapshot_state, manifest in rows:
            assert bool(restorable) == (snapshot_id is not None), sandbox_id
            if snapshot_id is None:
                assert state != "suspended", sandbox_id
            else:
                assert (snapshot_state, manifest is not None) == ("ready", True), sandbox_id
                assert state != "deleted", sandbox_id

    def _what_operations_work_with_is_there(self) -> None:
        rows = self._rows(
            "SELECT o.id, o.kind, o.waits_for, s.state FROM operations o LEFT JOIN snapshots s"
            " ON s.id = o.snapshot_id WHERE o.status IN ('queued', 'running') AND o.snapshot_id IS NOT NULL"
        )
        for operation_id, kind, waits_for, state in rows:
            allowed = ("ready",) if kind in ("create", "wake", "recover") else ("uploading", "ready")
            assert (state in allowed, waits_for) == (True, None), operation_id

    def _a_held_sandbox_has_one_open_operation_of_its_generation(self) -> None:
        held = self._rows("SELECT held_by, id, generation, held_kind FROM sandboxes WHERE held_by IS NOT NULL")
        unfinished = self._rows(
            "SELECT id, sandbox_id, generation, kind FROM operations WHERE status IN ('queued', 'running')"
        )
        assert sorted(held) == sorted(unfinished)

    def _children_wait_only_for_forks_that_are_under_way(self) -> None:
        assert not self._rows(
            "SELECT c.id FROM operations c LEFT JOIN operations f ON f.id = c.waits_for"
            " WHERE c.waits_for IS NOT NULL AND c.status IN ('queued', 'running')"
            " AND (f.id IS NULL OR f.kind <> 'fork' OR f.status NOT IN ('queued', 'running'))"
        )

    def _timelines_have_no_gaps(self) -> None:
        assert not self._rows(
            "SELECT sandbox_id FROM events GROUP BY sandbox_id HAVING COUNT(*) <> MAX(seq) OR MIN(seq) <> 1"
        )

    async def _each_warm_machine_has_one_sandbox(self) -> None:
        claimed = [row[0] for row in self._rows("SELECT pooled_id FROM sandboxes WHERE pooled_id IS NOT NULL")]
        assert len(claimed) == len(set(claimed))
        assert set(claimed) <= {row.id for row in await self.store.pools.machines(NODE) if row.sandbox_id is not None}

    async def _what_is_shown_and_when_it_is_idle_follow_from_the_rest(self) -> None:
        for sandbox_id, shown, idle_at in self._rows("SELECT id, shown_state, idle_at FROM sandboxes"):
            sandbox = await self.store.sandboxes.find(sandbox_id)
            assert sandbox is not None
            assert sandbox.shown_state == shown
            assert (idle_at is not None) == (sandbox.state in (State.RUNNING, State.PAUSED)), sandbox_id


async def _live_through(steps: Sequence[tuple[str, int, int]]) -> None:
    history = History()
    try:
        await add_projects(history.store)
        for _ in range(2):
            await history.create(0, 0)
            await history.finish(0, 0)
        for action, one, two in steps:
            await getattr(history, action)(one, two)
            await history.check()
    finally:
        await history.close()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
async def test_any_history_leaves_rows_that_agree(steps: list[tuple[str, int, int]]) -> None:
    await _live_through(steps)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
async def test_a_thousand_histories_leave_rows_that_agree(steps: list[tuple[str, int, int]]) -> None:
    await _live_through(steps)

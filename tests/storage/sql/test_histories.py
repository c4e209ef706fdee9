"""Whatever is admitted and however it ends, in any order: what the rows say of each other stays true."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from space.core.errors import SpaceError
from space.core.ids import SnapshotId
from space.core.lifecycle import Kind, State
from space.core.operation import Operation, Status
from space.core.sandbox import Sandbox
from space.core.snapshot import DIGEST_BYTES, Purpose
from space.core.store import Outcome
from space.storage.sql.store import open_store
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

T = TypeVar("T")
NUMBER = st.integers(min_value=0, max_value=99)
KINDS = st.sampled_from([kind for kind in Kind if kind not in (Kind.CREATE, Kind.FORK)])


def chunk_of(snapshot_id: str) -> bytes:
    return snapshot_id.encode().ljust(DIGEST_BYTES)


class Histories(RuleBasedStateMachine):
    """Does what the control plane does, a step at a time, and sometimes does not come back."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._directory = Path(tempfile.mkdtemp(prefix="histories-"))
        self.store = self._run(self._open())
        self._run(add_projects(self.store))
        self.sandboxes: list[str] = []
        self.operations: dict[str, Operation] = {}  # as their workers know them
        self.published: set[str] = set()

    async def _open(self) -> Any:
        return open_store(self._directory / "space.db")

    def _run(self, call: Awaitable[T]) -> T:
        return self._runner.run(call)  # type: ignore[arg-type]

    def teardown(self) -> None:
        self._run(self.store.aclose())
        self._runner.close()
        shutil.rmtree(self._directory)

    def _rows(self, sql: str, *parameters: Any) -> list[Any]:
        return self.store._reader.rows(sql, parameters)

    # What happens

    @rule(asks=st.booleans())
    def create(self, asks: bool) -> None:
        made = replace(creation(), pool=KEY if asks else None)
        self._run(self.store.sandboxes.create(made))
        self.sandboxes.append(made.sandbox.id)
        self.operations[made.operation.id] = made.operation

    @rule()
    def park(self) -> None:
        row = machine()
        self._run(self.store.pools.add(row))
        self._run(self.store.pools.parked(row.id, at=START))

    @precondition(lambda self: self.sandboxes)
    @rule(which=NUMBER, kind=KINDS)
    def admit(self, which: int, kind: Kind) -> None:
        sandbox = self._sandbox(which)
        if sandbox is None:
            return
        try:
            changed = self._run(self.store.sandboxes.change(change(sandbox, kind)))
        except SpaceError:
            return
        if not changed.operation.status.is_final:
            self.operations.setdefault(changed.operation.id, changed.operation)

    @precondition(lambda self: self.sandboxes)
    @rule(which=NUMBER, count=st.integers(1, 3))
    def fork(self, which: int, count: int) -> None:
        sandbox = self._sandbox(which)
        if sandbox is None:
            return
        try:
            forked = self._run(self.store.sandboxes.fork(fork(sandbox, count)))
        except SpaceError:
            return
        self.operations[forked.changed.operation.id] = forked.changed.operation
        self.sandboxes += [child.id for child in forked.children if isinstance(child, Sandbox)]

    @precondition(lambda self: self.operations)
    @rule(which=NUMBER, succeeds=st.booleans())
    def finish(self, which: int, succeeds: bool) -> None:
        operation = list(self.operations.values())[which % len(self.operations)]
        error = None if succeeds else {"code": "internal", "message": "no"}
        outcome = Outcome(status=Status.SUCCEEDED if succeeds else Status.FAILED, at=START, error=error)
        if succeeds and operation.kind in MAKES_SNAPSHOT and operation.snapshot_id is not None:
            outcome = replace(outcome, published=self._upload(operation.snapshot_id))
        with contextlib.suppress(SpaceError):  # it was preempted, or taken over
            self._run(self.store.operations.finish(operation, outcome))
        del self.operations[operation.id]

    def _upload(self, snapshot_id: SnapshotId) -> Any:
        try:
            self._run(self.store.snapshots.pin(snapshot_id, chunk_of(snapshot_id), now=START))
        except SpaceError:
            return None if snapshot_id in self.published else publication(snapshot_id)
        self.published.add(snapshot_id)
        return publication(snapshot_id)

    @rule()
    def claim(self) -> None:
        later = lease("two", at=START, seconds=0)
        for operation in self._run(self.store.operations.claim(later, now=START.replace(hour=1), limit=99)):
            assert operation.waits_for is None
            self.operations[operation.id] = operation

    @precondition(lambda self: self.sandboxes)
    @rule(which=NUMBER)
    def lose_machine(self, which: int) -> None:
        sandbox = self._sandbox(which)
        if sandbox is not None:
            call = self.store.sandboxes.observe_exit(sandbox.id, sandbox.generation, reason="oom", at=START, data={})
            self._run(call)

    @rule(forgets=st.booleans())
    def collect(self, forgets: bool) -> None:
        for snapshot in self._run(self.store.snapshots.unwanted(limit=99)):
            if forgets:
                self._run(self.store.snapshots.forget(snapshot.id))

    @rule(which=NUMBER)
    def delete_named(self, which: int) -> None:
        page = self._run(
            self.store.snapshots.list(PROJECT, purpose=Purpose.NAMED, sandbox_id=None, limit=99, cursor=None)
        )
        if page.items:
            snapshot = page.items[which % len(page.items)]
            try:
                self._run(self.store.snapshots.delete(snapshot.id, PROJECT, audit=entry()))
            except SpaceError:
                return

    @rule()
    def purge(self) -> None:
        self._run(self.store.sandboxes.purge(START.replace(hour=1), limit=2))

    @rule()
    def restart(self) -> None:
        self._run(self.store.aclose())
        self.store = self._run(self._open())

    def _sandbox(self, which: int) -> Sandbox | None:
        return self._run(self.store.sandboxes.find(self.sandboxes[which % len(self.sandboxes)]))

    # What is true

    @invariant()
    def every_sandbox_can_return_to_what_it_says(self) -> None:
        rows = self._rows(
            "SELECT b.id, b.state, b.restorable, b.snapshot_id, s.state, s.manifest FROM sandboxes b"
            " LEFT JOIN snapshots s ON s.id = b.snapshot_id"
        )
        for sandbox_id, state, restorable, snapshot_id, snapshot_state, manifest in rows:
            assert bool(restorable) == (snapshot_id is not None), sandbox_id
            assert snapshot_id is None or (snapshot_state, state != "deleted") == ("ready", True), sandbox_id
            assert snapshot_id is None or manifest is not None
            assert snapshot_id is not None or state != "suspended", sandbox_id

    @invariant()
    def what_operations_work_with_is_there(self) -> None:
        rows = self._rows(
            "SELECT o.id, o.kind, o.waits_for, o.snapshot_id, s.state FROM operations o LEFT JOIN snapshots s"
            " ON s.id = o.snapshot_id WHERE o.status IN ('queued', 'running') AND o.snapshot_id IS NOT NULL"
        )
        for operation_id, kind, waits_for, _, state in rows:
            starts = kind in ("create", "wake", "recover")
            assert state in (("ready",) if starts else ("uploading", "ready")), operation_id
            assert waits_for is None

    @invariant()
    def a_held_sandbox_has_one_open_operation_of_its_generation(self) -> None:
        held = self._rows("SELECT held_by, id, generation, held_kind FROM sandboxes WHERE held_by IS NOT NULL")
        open_ones = self._rows(
            "SELECT id, sandbox_id, generation, kind FROM operations WHERE status IN ('queued', 'running')"
        )
        assert sorted(held) == sorted(open_ones)

    @invariant()
    def children_wait_only_for_forks_that_are_under_way(self) -> None:
        assert not self._rows(
            "SELECT c.id FROM operations c LEFT JOIN operations f ON f.id = c.waits_for"
            " WHERE c.waits_for IS NOT NULL AND c.status IN ('queued', 'running')"
            " AND (f.id IS NULL OR f.kind <> 'fork' OR f.status NOT IN ('queued', 'running'))"
        )

    @invariant()
    def the_collector_spares_every_chunk_of_what_is_ready(self) -> None:
        pinned = self._run(self.store.snapshots.begin_collection(PROJECT, until=START, now=START))
        ready = self._rows("SELECT id FROM snapshots WHERE state = 'ready'")
        for (snapshot_id,) in ready:
            assert all(chunk in pinned for chunk in self._chunks(snapshot_id)), snapshot_id
        self._run(self.store.snapshots.end_collection(PROJECT))

    def _chunks(self, snapshot_id: str) -> list[bytes]:
        (row,) = self._rows("SELECT pins FROM snapshots WHERE id = ?", snapshot_id)
        assert row[0]
        return [row[0][start : start + DIGEST_BYTES] for start in range(0, len(row[0]), DIGEST_BYTES)]

    @invariant()
    def timelines_have_no_gaps(self) -> None:
        assert not self._rows(
            "SELECT sandbox_id FROM events GROUP BY sandbox_id HAVING COUNT(*) <> MAX(seq) OR MIN(seq) <> 1"
        )

    @invariant()
    def each_warm_machine_has_one_sandbox(self) -> None:
        claimed = self._rows("SELECT pooled_id FROM sandboxes WHERE pooled_id IS NOT NULL")
        assert len(claimed) == len(set(claimed))
        bound = {row.id for row in self._run(self.store.pools.machines(NODE)) if row.sandbox_id is not None}
        assert {row[0] for row in claimed} <= bound

    @invariant()
    def what_is_shown_and_when_it_is_idle_follow_from_the_rest(self) -> None:
        for sandbox_id, shown, idle_at in self._rows("SELECT id, shown_state, idle_at FROM sandboxes"):
            sandbox = self._run(self.store.sandboxes.find(sandbox_id))
            assert sandbox is not None
            assert sandbox.shown_state == shown
            assert (idle_at is not None) == (sandbox.state in (State.RUNNING, State.PAUSED)), sandbox_id


class TestHistories(Histories.TestCase):
    settings = settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.soak
class TestLongHistories(Histories.TestCase):
    settings = settings(
        max_examples=1000, stateful_step_count=80, deadline=None, suppress_health_check=list(HealthCheck)
    )

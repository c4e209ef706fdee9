"""Random histories against a model: every change of the lifecycle, repeats, crashes of server and machines, and time.

The store and the worker are real; the model knows only what callers were promised, and what each guest has written.
Guests write whenever their machines are not stopped, also while operations are under way: whatever one has written
must be there as long as no machine was lost, and after a loss a moment that was durable.  A crash throws away the
server's memory (worker, waiters, leases) and keeps the database and the machines.
"""

import asyncio
import atexit
import contextlib
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from space.control.observations import Observations
from space.control.reaper import Reaper
from space.core.errors import Conflict, FailedPrecondition, NodeUnreachable, NotFound, RuntimeFailed, Unavailable
from space.core.ids import SandboxId
from space.core.lifecycle import Admission, State
from space.core.operation import Status
from space.core.sandbox import AutoLifecycle, OnIdle, Sandbox
from space.core.store import Changed, Forked
from space.storage.sql.store import open_store
from space.testing.clock import FakeClock
from space.testing.control_plane import ControlPlane, NoProcesses, a_call, control_plane
from space.testing.node import FakeNode

DAY = 24 * 3600


@functools.cache
def _empty_database() -> Path:
    """Make a migrated database once: migrating takes longer than a short history."""
    directory = Path(tempfile.mkdtemp(prefix="space-model-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)

    async def migrating() -> None:
        await open_store(directory / "space.db").aclose()

    asyncio.run(migrating())
    return directory


class Histories(RuleBasedStateMachine):
    """What callers may do, and what must be true after each."""

    sandboxes = Bundle("sandboxes")

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.directory = tempfile.TemporaryDirectory()
        shutil.copytree(_empty_database(), self.directory.name, dirs_exist_ok=True)
        self.clock = FakeClock()
        self.node = FakeNode()
        self.plane: ControlPlane
        self.closing: contextlib.AsyncExitStack
        self.acknowledged: dict[SandboxId, str] = {}  # what was promised last: "created" or "deleted"
        self.limited: set[SandboxId] = set()  # those with a lifetime
        self.versions: dict[SandboxId, tuple[int, int]] = {}
        self.written: dict[SandboxId, int] = {}  # what each guest wrote last
        self.lost: set[SandboxId] = set()  # those whose machine died since they wrote last
        self.open()

    def open(self) -> None:
        async def opening() -> None:
            self.closing = contextlib.AsyncExitStack()
            self.plane = await self.closing.enter_async_context(
                control_plane(Path(self.directory.name), node=self.node, clock=self.clock)
            )
            self.observations = Observations(self.plane.store, self.node, self.clock, NoProcesses())
            self.reaper = Reaper(self.plane.store, self.node, self.clock, self.plane.worker)

        self.loop.run_until_complete(opening())

    def run(self, coroutine: object) -> object:
        return self.loop.run_until_complete(coroutine)  # type: ignore[arg-type]

    async def settle(self) -> None:
        """Let everything that can go on go on, over a minute of the clock."""
        for _ in range(60):
            self.clock.advance(1)
            await asyncio.sleep(0.001)
            if not self.plane.store._reader.row("SELECT 1 FROM operations WHERE status IN ('queued', 'running')"):
                return

    @rule(
        target=sandboxes,
        lifetime=st.sampled_from([None, None, None, 60]),
        on_idle=st.sampled_from(OnIdle),
        fails=st.integers(0, 4),
    )
    def create(self, lifetime: int | None, on_idle: OnIdle, fails: int) -> SandboxId:
        self.node.failures = [RuntimeFailed("no")] * max(0, fails - 1)
        lifecycle = AutoLifecycle(max_lifetime_seconds=lifetime, on_idle=on_idle)
        sandbox, _ = self.run(self.plane.create(auto_lifecycle=lifecycle))  # type: ignore[misc]
        self.acknowledged[sandbox.id] = "created"
        if lifetime is not None or on_idle is OnIdle.DELETE:
            self.limited.add(sandbox.id)
        return sandbox.id  # type: ignore[no-any-return]

    @rule(sandbox_id=sandboxes, times=st.integers(1, 3), unreachable=st.booleans())
    def delete(self, sandbox_id: SandboxId, times: int, unreachable: bool) -> None:
        async def deleting() -> None:
            if unreachable:
                self.node.remove_failures = [NodeUnreachable("away")] * 2
            await asyncio.gather(*(self.plane.delete(sandbox_id) for _ in range(times)))

        with contextlib.suppress(NotFound):  # forgotten after its day
            self.run(deleting())
            self.acknowledged[sandbox_id] = "deleted"

    @rule(sandbox_id=sandboxes, kind=st.sampled_from(["pause", "suspend", "wake", "recover"]), times=st.integers(1, 3))
    def change(self, sandbox_id: SandboxId, kind: str, times: int) -> None:
        async def changing() -> None:
            ask = getattr(self.plane.sandboxes, kind)
            results = await asyncio.gather(*(ask(a_call(), sandbox_id) for _ in range(times)), return_exceptions=True)
            assert all(isinstance(result, (Changed, FailedPrecondition, Conflict, NotFound)) for result in results), (
                results
            )
            operations = {
                result.operation.id
                for result in results
                if isinstance(result, Changed) and result.admission is not Admission.SATISFIED
            }
            assert len(operations) <= 1, "those who ask at once share one operation"

        self.run(changing())

    @rule(sandbox_id=sandboxes)
    def snapshot(self, sandbox_id: SandboxId) -> None:
        with contextlib.suppress(FailedPrecondition, Conflict, NotFound):
            self.run(self.plane.sandboxes.snapshot(a_call(), sandbox_id, None))

    @rule(sandbox_id=sandboxes, count=st.integers(1, 2))
    def fork(self, sandbox_id: SandboxId, count: int) -> None:
        """Make children; `remember` takes them up, because whether there are any depends on the moment."""
        try:
            forked = self.run(self.plane.sandboxes.fork(a_call(), sandbox_id, count))
        except (FailedPrecondition, Conflict, NotFound):
            return
        assert isinstance(forked, Forked)
        children = [child.id for child in forked.children if isinstance(child, Sandbox)]
        assert len(children) == count
        for child in children:
            self.acknowledged[child] = "created"
            if sandbox_id in self.limited:
                self.limited.add(child)

    @rule(
        method=st.sampled_from(["pause", "resume", "checkpoint", "upload", "release", "discard", "ensure"]),
        error=st.sampled_from([Unavailable("away"), RuntimeFailed("no"), FailedPrecondition("it cannot")]),
        times=st.integers(1, 3),
    )
    def calls_will_fail(self, method: str, error: Exception, times: int) -> None:
        self.node.fail(method, *[error] * times)

    @rule()
    def guests_write(self) -> None:
        for sandbox_id, memory in self.node.memory.items():
            if sandbox_id not in self.node.stopped:
                self.written[sandbox_id] = memory["n"] = max(self.written.get(sandbox_id, 0), memory.get("n", 0)) + 1
                self.lost.discard(sandbox_id)

    @rule()
    def settle_down(self) -> None:
        self.run(self.settle())

    @rule(moments=st.integers(0, 5))
    def let_go_on(self, moments: int) -> None:
        async def going() -> None:
            for _ in range(moments):
                await asyncio.sleep(0.0005)

        self.run(going())

    @rule(seconds=st.sampled_from([1, 20, 61, DAY + 1]))
    def advance(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def reap(self) -> None:
        self.run(self.reaper.reap())

    @rule()
    def reconcile(self) -> None:
        self.run(self.observations.reconcile())

    @rule(is_hard=st.booleans())
    def restart_the_server(self, is_hard: bool) -> None:
        if not is_hard:
            self.run(self.settle())
        self.run(self.closing.aclose())
        self.open()

    @rule(sandbox_id=sandboxes)
    def a_machine_dies(self, sandbox_id: SandboxId) -> None:
        if sandbox_id in self.node.machines:
            self.node.crash(sandbox_id, is_seen=False)
            self.lost.add(sandbox_id)

    @rule(sandbox_id=consumes(sandboxes))
    def forget(self, sandbox_id: SandboxId) -> None:
        """The caller loses interest; the promises stay."""

    @rule(target=sandboxes, number=st.integers(0, 30))
    def remember(self, number: int) -> object:
        known = list(self.acknowledged)
        return known[number % len(known)] if known else multiple()

    # Invariants read with one statement each and do not run the loop: the writer's thread commits meanwhile.

    def rows(self, sql: str) -> list[Any]:
        return self.plane.store._reader.rows(sql)

    @invariant()
    def an_acknowledged_create_has_its_row_until_a_day_after_its_end(self) -> None:
        shown = dict(self.rows("SELECT id, shown_state FROM sandboxes"))
        for sandbox_id, promise in self.acknowledged.items():
            if sandbox_id not in shown:  # forgotten, which happens only to what was deleted
                assert promise == "deleted" or sandbox_id in self.limited
            elif promise == "deleted":
                assert shown[sandbox_id] in ("deleting", "deleted")

    @invariant()
    def versions_and_generations_only_rise(self) -> None:
        for sandbox_id, version, generation in self.rows("SELECT id, version, generation FROM sandboxes"):
            before = self.versions.get(sandbox_id, (0, 0))
            assert version >= before[0]
            assert generation >= before[1]
            self.versions[sandbox_id] = (version, generation)

    @invariant()
    def unfinished_operations_and_sandboxes_hold_each_other(self) -> None:
        pairs = self.rows(
            "SELECT s.held_by, o.id FROM sandboxes s"
            " FULL JOIN (SELECT * FROM operations WHERE status IN ('queued', 'running')) o ON o.id = s.held_by"
            " WHERE s.held_by IS NOT NULL OR o.id IS NOT NULL"
        )
        assert all(held_by == operation_id for held_by, operation_id in pairs)

    @invariant()
    def events_have_no_gaps(self) -> None:
        counted = self.rows("SELECT COUNT(*), MIN(seq), MAX(seq) FROM events GROUP BY sandbox_id")
        assert all(first == 1 and last == count for count, first, last in counted)

    @invariant()
    def no_deleted_sandbox_has_a_machine(self) -> None:
        deleted = {row[0] for row in self.rows("SELECT id FROM sandboxes WHERE state = 'deleted'")}
        assert not deleted & self.node.machines.keys()

    @invariant()
    def a_machine_remembers_what_its_guest_wrote(self) -> None:
        states = dict(self.rows("SELECT id, state FROM sandboxes WHERE held_by IS NULL"))
        for sandbox_id, memory in self.node.memory.items():
            if states.get(sandbox_id) in (State.RUNNING, State.PAUSED) and sandbox_id in self.written:
                self.require_kept(sandbox_id, memory.get("n", 0))

    @invariant()
    def a_suspended_sandbox_is_a_durable_moment_of_all_that_its_guest_wrote(self) -> None:
        rows = self.rows(
            "SELECT s.id, p.state, p.manifest FROM sandboxes s LEFT JOIN snapshots p ON p.id = s.snapshot_id"
            " WHERE s.state = 'suspended'"
        )
        for sandbox_id, state, manifest in rows:
            assert state == "ready"
            if sandbox_id in self.written:
                self.require_kept(sandbox_id, self.node.objects[manifest].memory.get("n", 0))

    def require_kept(self, sandbox_id: SandboxId, seen: int) -> None:
        if sandbox_id not in self.lost:
            assert seen == self.written[sandbox_id]
        else:
            assert seen <= self.written[sandbox_id]

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.node.failures, self.node.remove_failures = [], []
        for method in ("pause", "resume", "checkpoint", "upload", "release", "discard", "ensure"):
            self.node.fail(method)
        try:
            self.run(self.settle())
            self.run(self.observations.reconcile())
            self.check_rest()
        finally:
            self.run(self.closing.aclose())
            self.loop.close()
            self.directory.cleanup()

    def check_rest(self) -> None:
        """After everything has settled, machines are exactly those that rows want."""
        rows = self.rows("SELECT id, state, generation, held_by FROM sandboxes")
        assert all(held_by is None for *_, held_by in rows)
        with_machine = {row[0]: row[2] for row in rows if row[1] in (State.RUNNING, State.PAUSED)}
        assert with_machine == self.node.machines
        assert {row[0] for row in rows if row[1] == State.PAUSED} == self.node.stopped
        assert State.PENDING not in {row[1] for row in rows}
        statuses = self.rows("SELECT DISTINCT status FROM operations")
        assert {row[0] for row in statuses} <= {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}


HISTORY = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class TestHistories(Histories.TestCase):  # type: ignore[misc, name-defined]  # made by hypothesis
    settings = HISTORY


@pytest.mark.soak
@pytest.mark.timeout(3600)
class TestLongHistories(Histories.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(HISTORY, max_examples=400, stateful_step_count=60)

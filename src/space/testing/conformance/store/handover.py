"""Processes when their sandbox gets another machine: they live on with its memory, or are lost with it."""

from datetime import timedelta
from typing import Any

import pytest

from space.core.command import CommandSpec, Process, ProcessState
from space.core.errors import InvalidTransition
from space.core.ids import ProcessId, SessionId
from space.core.lifecycle import Kind
from space.core.ports import SessionStatus
from space.core.sandbox import Sandbox
from space.core.store import NewProcess, Store
from space.testing.conformance.store.made import SECOND, a_running, after, failure
from space.testing.rows import START, change, entry, new_id, succeed


def _at(seconds: float) -> Any:
    return START + timedelta(seconds=seconds)


def _new(sandbox: Sandbox, seconds: float) -> NewProcess:
    process = Process(
        id=ProcessId(new_id("prc")),
        session_id=SessionId(new_id("ses")),
        sandbox_id=sandbox.id,
        project_id=sandbox.project_id,
        generation=0,
        spec=CommandSpec(argv=("true",)),
        state=ProcessState.CREATED,
        created_at=_at(seconds),
    )
    return NewProcess(process=process, token=None, audit=entry())


def _status(process: Process, *, started: float, exited: float | None = None, is_lost: bool = False) -> SessionStatus:
    return SessionStatus(
        session_id=process.session_id,
        sandbox_id=process.sandbox_id,
        process_id=process.id,
        os_pid=7,
        started_at=_at(started),
        exited_at=None if exited is None else _at(exited),
        exit_code=None if exited is None or is_lost else 0,
        signal=None,
        reason="gone" if is_lost else None,
        stdout_bytes=0,
        stderr_bytes=0,
        is_lost=is_lost,
    )


async def _created(store: Store, sandbox: Sandbox, seconds: float = 0) -> Process:
    return await store.processes.create(_new(sandbox, seconds))


async def _running(store: Store, sandbox: Sandbox, seconds: float = 0) -> Process:
    process = await _created(store, sandbox, seconds)
    await store.processes.observe(_status(process, started=seconds))
    return await _found(store, process)


async def _found(store: Store, process: Process) -> Process:
    found = await store.processes.find(process.id)
    assert found is not None
    return found


async def _exit(store: Store, sandbox: Sandbox, seconds: float) -> None:
    assert await store.sandboxes.observe_exit(sandbox.id, sandbox.generation, reason="oom", at=_at(seconds), data={})


@pytest.mark.anyio
class HandoverConformance:
    """Tests of what becomes of processes."""

    async def test_what_was_suspended_runs_on_after_the_wake_as_the_new_machines(self, store: Store) -> None:
        sandbox = await a_running(store)
        running, waiting = await _running(store, sandbox), await _created(store, sandbox)
        suspended = await after(store, sandbox, Kind.SUSPEND)
        assert await _found(store, running) == running
        with pytest.raises(InvalidTransition):
            await _created(store, suspended)
        woken = await after(store, suspended, Kind.WAKE)
        for process in (running, waiting):
            found = await _found(store, process)
            assert (found.state, found.generation) == (process.state, woken.generation)
        await store.processes.lose(sandbox.id, 1, reason="late news of the old machine", at=START)
        assert (await _found(store, running)).state is ProcessState.RUNNING
        _, generation = await store.processes.request_start(waiting.session_id, at=START)
        assert generation == woken.generation

    async def test_what_is_said_to_be_lost_of_a_suspended_sandbox_runs_on_after_the_wake(self, store: Store) -> None:
        sandbox = await a_running(store)
        process, gone = await _running(store, sandbox, 1), await _running(store, sandbox, 1)
        await store.processes.observe(_status(gone, started=1, exited=2, is_lost=True))
        suspended = await after(store, sandbox, Kind.SUSPEND, seconds=3)
        await store.processes.observe(_status(process, started=1, exited=4, is_lost=True))
        assert (await _found(store, process)).state is ProcessState.LOST
        woken = await after(store, suspended, Kind.WAKE, seconds=5)
        found = await _found(store, process)
        assert (found.state, found.generation) == (ProcessState.RUNNING, woken.generation)
        assert (found.exited_at, found.reason) == (None, None)
        assert (await _found(store, gone)).state is ProcessState.LOST

    async def test_a_wake_that_fails_loses_nothing(self, store: Store) -> None:
        sandbox = await a_running(store)
        process = await _running(store, sandbox)
        suspended = await after(store, sandbox, Kind.SUSPEND)
        waking = await store.sandboxes.change(change(suspended, Kind.WAKE))
        ended, _ = await store.operations.finish(waking.operation, failure())
        assert await _found(store, process) == process
        woken = await after(store, ended, Kind.WAKE)
        assert (await _found(store, process)).generation == woken.generation == 3

    async def test_pausing_and_waking_leaves_processes_alone(self, store: Store) -> None:
        sandbox = await a_running(store)
        process = await _running(store, sandbox)
        await after(store, sandbox, Kind.PAUSE, Kind.WAKE)
        assert await _found(store, process) == process

    async def test_deleting_a_suspended_sandbox_ends_what_was_suspended_with_it(self, store: Store) -> None:
        sandbox = await a_running(store)
        process = await _running(store, sandbox)
        await after(store, sandbox, Kind.SUSPEND, Kind.DELETE)
        found = await _found(store, process)
        assert (found.state, found.reason) == (ProcessState.LOST, "sandbox_deleted")

    async def test_recovering_brings_back_what_ran_at_the_snapshot_and_not_what_came_later(self, store: Store) -> None:
        sandbox = await a_running(store)
        before, ended, gone, uploading = [await _running(store, sandbox, 1) for _ in range(4)]
        waiting = await _created(store, sandbox, 1)
        changed = await store.sandboxes.change(change(sandbox, Kind.SNAPSHOT, at=_at(2)))
        young, too_young = await _running(store, sandbox, 3), await _running(store, sandbox, 4.5)
        await store.processes.observe(_status(gone, started=1, exited=3))
        await store.processes.observe(_status(uploading, started=1, exited=4.5))
        sandbox = await succeed(store, changed.operation, taken_at=_at(4), at=_at(5))
        later = await _running(store, sandbox, 6)
        await store.processes.observe(_status(ended, started=1, exited=7))
        await _exit(store, sandbox, 9)
        for process in (before, young, too_young, waiting, later):
            assert (await _found(store, process)).state is ProcessState.LOST
        recovered = await after(store, sandbox, Kind.RECOVER, seconds=10)
        for process in (before, young, ended, uploading):
            back = await _found(store, process)
            assert (back.state, back.generation) == (ProcessState.RUNNING, recovered.generation)
            assert (back.exited_at, back.exit_code, back.reason) == (None, None, None)
        for process in (waiting, too_young, later):
            assert (await _found(store, process)).state is ProcessState.LOST
        assert (await _found(store, gone)).state is ProcessState.EXITED, "the machine had seen it, too"
        await store.processes.observe(_status(before, started=1, exited=12))
        assert (await _found(store, before)).exit_code == 0

    async def test_what_was_lost_before_the_snapshot_stays_lost(self, store: Store) -> None:
        sandbox = await a_running(store)
        sandbox = await after(store, sandbox, Kind.SNAPSHOT, seconds=1)
        lost = await _running(store, sandbox, 2)
        await _exit(store, sandbox, 3)
        sandbox = await after(store, sandbox, Kind.RECOVER, seconds=4)
        kept = await _running(store, sandbox, 5)
        sandbox = await after(store, sandbox, Kind.SNAPSHOT, seconds=6)
        await _exit(store, sandbox, 7)
        await after(store, sandbox, Kind.RECOVER, seconds=8)
        assert (await _found(store, lost)).state is ProcessState.LOST
        assert (await _found(store, kept)).state is ProcessState.RUNNING

    async def test_a_recover_that_fails_brings_nothing_back(self, store: Store) -> None:
        sandbox = await a_running(store)
        process = await _running(store, sandbox, 1)
        sandbox = await after(store, sandbox, Kind.SNAPSHOT, seconds=2)
        await _exit(store, sandbox, 3)
        recovering = await store.sandboxes.change(change(sandbox, Kind.RECOVER))
        await store.operations.finish(recovering.operation, failure(4))
        assert (await _found(store, process)).state is ProcessState.LOST
        again = await store.sandboxes.change(change(sandbox, Kind.RECOVER))
        await succeed(store, again.operation, at=START + 5 * SECOND)
        assert (await _found(store, process)).state is ProcessState.RUNNING

    async def test_a_command_counts_as_use_until_the_sandbox_is_suspended(self, store: Store) -> None:
        sandbox = await a_running(store)
        await _created(store, sandbox, seconds=21_600)
        request = change(sandbox, Kind.SUSPEND, at=_at(21_601), overdue="idle")
        with pytest.raises(Exception, match="was used"):
            await store.sandboxes.change(request)

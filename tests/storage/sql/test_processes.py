"""Rows of processes: what order observations come in does not matter."""

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from space.core.command import CommandSpec, Process, ProcessState, Pty, SessionToken
from space.core.errors import AlreadyExists, InvalidTransition, NotFound, OperationInProgress
from space.core.ids import ProcessId, SandboxId, SessionId, TokenId
from space.core.operation import Status
from space.core.ports import SessionStatus
from space.core.store import NewProcess, Outcome
from space.storage.sql import processes
from space.storage.sql.store import SqlStore, open_store
from space.testing.projects import add_project
from space.testing.rows import PROJECT, START, creation, entry, new_id

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def a_store(directory: Path) -> AsyncIterator[SqlStore]:
    store = open_store(directory / "space.db")
    try:
        await add_project(store, PROJECT, name="p", at=START)
        yield store
    finally:
        await store.aclose()


async def a_sandbox(store: SqlStore, *, is_running: bool = True) -> SandboxId:
    made = creation()
    await store.sandboxes.create(made)
    if is_running:
        await store.operations.finish(made.operation, Outcome(status=Status.SUCCEEDED, at=START))
    return made.sandbox.id


def a_process(sandbox_id: SandboxId, **changes: object) -> Process:
    fields: dict[str, object] = {
        "id": ProcessId(new_id("prc")),
        "session_id": SessionId(new_id("ses")),
        "sandbox_id": sandbox_id,
        "project_id": PROJECT,
        "generation": 0,
        "spec": CommandSpec(argv=("true",)),
        "state": ProcessState.CREATED,
        "created_at": START,
    }
    return Process(**{**fields, **changes})  # type: ignore[arg-type]


def status(process: Process, state: ProcessState, **changes: object) -> SessionStatus:
    is_over = state in (ProcessState.EXITED, ProcessState.LOST)
    fields: dict[str, object] = {
        "session_id": process.session_id,
        "sandbox_id": process.sandbox_id,
        "process_id": process.id,
        "os_pid": 7,
        "started_at": START if state is not ProcessState.CREATED else None,
        "exited_at": START + timedelta(seconds=1) if is_over else None,
        "exit_code": 3 if state is ProcessState.EXITED else None,
        "signal": None,
        "reason": "oom" if state is ProcessState.LOST else None,
        "stdout_bytes": 5,
        "stderr_bytes": 6,
        "is_lost": state is ProcessState.LOST,
    }
    return SessionStatus(**{**fields, **changes})  # type: ignore[arg-type]


async def test_a_row_gives_back_what_was_put_in(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        sandbox_id = await a_sandbox(store)
        spec = CommandSpec(
            argv=("a", "é", "'; DROP TABLE processes; --"),
            env={"K": "v\n"},
            cwd="/w",
            user="u",
            stdin=True,
            pty=Pty(cols=3, rows=4),
            timeout_seconds=1.5,
            start_now=True,
        )
        process = a_process(sandbox_id, spec=spec)
        made = await store.processes.create(NewProcess(process=process, token=None, audit=entry()))
        assert made.spec == spec
        assert made.generation == 1
        assert await store.processes.find(process.id) == made
        assert await store.processes.find_session(process.session_id) == made
        plain = await store.processes.create(NewProcess(process=a_process(sandbox_id), token=None, audit=entry()))
        assert plain.spec == CommandSpec(argv=("true",))
        with pytest.raises(AlreadyExists):
            await store.processes.create(NewProcess(process=process, token=None, audit=entry()))


async def test_a_sandbox_that_still_boots_takes_no_process(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        sandbox_id = await a_sandbox(store, is_running=False)
        with pytest.raises(OperationInProgress) as refused:
            await store.processes.create(NewProcess(process=a_process(sandbox_id), token=None, audit=entry()))
        assert refused.value.retryable
        assert refused.value.details["operation_id"].startswith("ops")
        missing = a_process(SandboxId("sbx" + "0" * 26))
        with pytest.raises(NotFound):
            await store.processes.create(NewProcess(process=missing, token=None, audit=entry()))


async def test_a_machine_that_dies_between_record_and_start_is_not_started_on(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        sandbox_id = await a_sandbox(store)
        process = a_process(sandbox_id)
        await store.processes.create(NewProcess(process=process, token=None, audit=entry()))
        await store.sandboxes.observe_exit(sandbox_id, 1, reason="oom", at=START, data={})

        found, generation = await store.processes.request_start(process.session_id, at=START)
        assert (found.state, found.reason, generation) == (ProcessState.LOST, "oom", None)
        with pytest.raises(InvalidTransition):
            await store.processes.create(NewProcess(process=a_process(sandbox_id), token=None, audit=entry()))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations([ProcessState.RUNNING, ProcessState.LOST, ProcessState.EXITED, ProcessState.CREATED]))
async def test_observations_in_any_order_and_twice_end_in_the_exit_that_was_seen(
    tmp_path: Path, order: list[ProcessState]
) -> None:
    async with a_store(tmp_path) as store:
        sandbox_id = await a_sandbox(store)
        process = a_process(sandbox_id)
        await store.processes.create(NewProcess(process=process, token=None, audit=entry()))
        for state in (*order, *order):
            await store.processes.observe(status(process, state))
        found = await store.processes.find(process.id)
        assert found is not None
        assert (found.state, found.exit_code, found.reason) == (ProcessState.EXITED, 3, None)
        assert (found.os_pid, found.started_at, found.stdout_bytes, found.stderr_bytes) == (7, START, 5, 6)


async def test_an_observation_of_another_session_changes_nothing(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        sandbox_id = await a_sandbox(store)
        process = a_process(sandbox_id)
        await store.processes.create(NewProcess(process=process, token=None, audit=entry()))
        forged = status(process, ProcessState.EXITED, session_id=SessionId(new_id("ses")))
        await store.processes.observe(forged)
        found = await store.processes.find(process.id)
        assert found is not None
        assert found.state is ProcessState.CREATED


async def test_losing_a_machine_spares_what_runs_on_a_newer_one(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        sandbox_id = await a_sandbox(store)
        process = a_process(sandbox_id)
        await store.processes.create(NewProcess(process=process, token=None, audit=entry()))
        await store.processes.lose(sandbox_id, 0, reason="old", at=START)
        assert (await store.processes.find(process.id)).state is ProcessState.CREATED  # type: ignore[union-attr]
        await store.processes.lose(sandbox_id, 1, reason="gone", at=START)
        assert (await store.processes.find(process.id)).state is ProcessState.LOST  # type: ignore[union-attr]


async def test_waiters_hear_of_an_end(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        sandbox_id = await a_sandbox(store)
        process = a_process(sandbox_id)
        await store.processes.create(NewProcess(process=process, token=None, audit=entry()))
        with store.watch(process.id) as watch:
            await store.processes.observe(status(process, ProcessState.EXITED))
            await watch.wait(5)
        found = await store.processes.find(process.id)
        assert found is not None
        assert found.state is ProcessState.EXITED


async def test_only_the_hash_of_a_session_token_is_kept_and_it_goes_with_its_process(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        sandbox_id = await a_sandbox(store)
        process = a_process(sandbox_id)
        token = SessionToken(
            session_id=process.session_id,
            token_hash=b"h" * 32,
            principal="tok1",
            token_id=TokenId("tok1"),
            expires_at=START,
        )
        await store.processes.create(NewProcess(process=process, token=token, audit=entry()))
        assert await store.processes.find_token(b"h" * 32) == token
        await store.processes.purge([process.session_id])
        assert await store.processes.find_token(b"h" * 32) is None
        with pytest.raises(NotFound):
            await store.processes.add_token(token, None)


async def test_what_is_forgotten_is_over_or_was_never_wanted(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        sandbox_id = await a_sandbox(store)
        ended, waiting, asked, running = (
            a_process(sandbox_id, is_start_requested=requested) for requested in (True, False, True, True)
        )
        for process in (ended, waiting, asked, running):
            await store.processes.create(NewProcess(process=process, token=None, audit=entry()))
        await store.processes.observe(status(ended, ProcessState.EXITED), status(running, ProcessState.RUNNING))
        later = START + timedelta(days=2)
        found: list[SessionId] = []
        while sessions := await store.processes.expired(later, limit=10):
            found += sessions
            await store.processes.purge(sessions)
        assert found == [ended.session_id, waiting.session_id]
        left = await store.processes.unfinished(limit=10)
        assert {process.id for process in left} == {asked.id, running.id}
        assert await store.processes.never_arrived(later, limit=10) == [asked.session_id]
        assert await store.processes.never_arrived(START - timedelta(days=1), limit=10) == []


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("SELECT * FROM processes WHERE session_id = ?", "sqlite_autoindex_processes_2"),
        ("SELECT * FROM processes WHERE sandbox_id = ? AND id > ? ORDER BY id LIMIT 2", "processes_by_sandbox"),
        (
            "SELECT COUNT(*) FROM processes WHERE sandbox_id = ? AND state IN ('created', 'running')",
            "processes_unfinished",
        ),
        (processes._NEVER_STARTED, "processes_unfinished"),
        (processes._NEVER_ARRIVED, "processes_unfinished"),
        ("SELECT session_id FROM processes WHERE exited_at < ? ORDER BY exited_at LIMIT 2", "processes_by_exit"),
        ("SELECT * FROM session_tokens WHERE token_hash = ?", "sqlite_autoindex_session_tokens_1"),
        ("SELECT * FROM tokens WHERE secret_hash = ?", "sqlite_autoindex_tokens_2"),
        ("SELECT * FROM users WHERE email = ?", "sqlite_autoindex_users_2"),
        (
            "SELECT * FROM idempotency_keys WHERE principal_id = ? AND method_path = ? AND key = ?",
            "sqlite_autoindex_idempotency_keys_1",
        ),
        ("SELECT seq FROM audit WHERE at < ? ORDER BY at DESC LIMIT 1", "audit_by_time"),
    ],
)
async def test_hot_queries_use_an_index(tmp_path: Path, query: str, index: str) -> None:
    async with a_store(tmp_path) as store:
        rows = store._reader.rows(f"EXPLAIN QUERY PLAN {query}", ("x",) * query.count("?"))
        plan = " ".join(row[3] for row in rows)
        assert index in plan
        assert "SCAN" not in plan or "SCAN processes USING" in plan


async def test_large_processes_come_in_smaller_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_PAGE_BYTES", 10_000)
    async with a_store(tmp_path) as store:
        sandbox_id = await a_sandbox(store)
        made = [a_process(sandbox_id, spec=CommandSpec(argv=("x" * 4000,))) for _ in range(7)]
        for process in made:
            await store.processes.create(NewProcess(process=process, token=None, audit=entry()))
        ids: list[str] = []
        sizes: list[int] = []
        cursor: str | None = None
        while True:
            page = await store.processes.list(sandbox_id, ended_after=START, limit=100, cursor=cursor)
            ids += [process.id for process in page.items]
            sizes.append(len(page.items))
            cursor = page.next_cursor
            if cursor is None:
                break
        assert ids == sorted(process.id for process in made)
        assert sizes == [3, 3, 1]
        assert len(await store.processes.unfinished(limit=100)) == 3

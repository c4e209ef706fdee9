"""What is known of processes before their rows are."""

from dataclasses import replace
from typing import Any

import pytest

from space.control.observed import Observed
from space.core.command import CommandSpec, Process, ProcessState
from space.core.ids import ProcessId, ProjectId, SandboxId, SessionId
from space.core.ports import SessionStatus
from space.testing.clock import FakeClock
from space.testing.rows import START

pytestmark = pytest.mark.anyio

RUNNING = SessionStatus(
    session_id=SessionId("ses1"),
    sandbox_id=SandboxId("sbx1"),
    process_id=ProcessId("prc1"),
    os_pid=7,
    started_at=START,
    exited_at=None,
    exit_code=None,
    signal=None,
    reason=None,
    stdout_bytes=0,
    stderr_bytes=0,
    is_lost=False,
)
LOST = replace(RUNNING, exited_at=START, reason="runtime_exited", is_lost=True)
EXITED = replace(RUNNING, exited_at=START, exit_code=0)
ROW = Process(
    id=RUNNING.process_id,
    session_id=RUNNING.session_id,
    sandbox_id=RUNNING.sandbox_id,
    project_id=ProjectId("prj1"),
    generation=1,
    spec=CommandSpec(argv=("true",)),
    state=ProcessState.RUNNING,
    created_at=START,
)


class Rows:
    """A store of one process, which remembers what it was told."""

    def __init__(self) -> None:
        self.processes = self
        self.written: list[SessionStatus] = []

    async def find(self, process_id: ProcessId) -> Process:
        return ROW

    async def observe(self, *statuses: SessionStatus) -> None:
        self.written += statuses


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def observed(rows: Any) -> Observed:
    return Observed(rows, FakeClock())


@pytest.mark.parametrize("end", [LOST, EXITED], ids=["lost", "exited"])
async def test_an_end_is_seen_at_once_and_written(observed: Observed, rows: Rows, end: SessionStatus) -> None:
    observed.follow(end)
    assert observed.lay_over(ROW).state is end.state
    await observed.flush()
    assert rows.written == [end]


@pytest.mark.parametrize("end", [LOST, EXITED], ids=["lost", "exited"])
async def test_an_end_that_a_restore_undid_is_neither_seen_nor_written_any_more(
    observed: Observed, rows: Rows, end: SessionStatus
) -> None:
    observed.follow(end)
    observed.follow(RUNNING)
    assert observed.lay_over(ROW).state is ProcessState.RUNNING
    await observed.flush()
    assert rows.written == []


async def test_an_answer_from_before_the_end_does_not_undo_it(observed: Observed, rows: Rows) -> None:
    observed.follow(EXITED)
    observed.note(RUNNING)  # what a start answered, which was slower
    assert observed.lay_over(ROW).state is ProcessState.EXITED
    await observed.flush()
    assert rows.written == [EXITED]

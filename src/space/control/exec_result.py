"""What `exec` answers: how a command ended, with the head and tail of its output."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from space.control.output import HeadAndTail
from space.core.command import Process
from space.core.errors import Unavailable
from space.core.ids import ProcessId, SessionId
from space.core.journal import JournalRecord, RecordKind, Trimmed
from space.core.ports import SessionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """A finished command.  If its machine died, `exit_code` is None and `reason` is `sandbox_lost: …`."""

    exit_code: int | None
    signal: str | None
    reason: str | None
    stdout: bytes  #: of a terminal, too
    stderr: bytes
    stdout_truncated: bool  #: a line in the output says how much is missing and where it is
    stderr_truncated: bool
    stdout_bytes: int  #: that the command wrote, all told
    stderr_bytes: int
    session_id: SessionId
    process_id: ProcessId
    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What the final record says."""

    kind: RecordKind
    data: dict[str, Any]

    @property
    def is_lost(self) -> bool:
        return self.kind is RecordKind.SANDBOX_LOST

    def status(self, process: Process, written: tuple[int, int]) -> SessionStatus:
        """Return the end as the node will observe it; `written` are the bytes of both streams."""
        at = self.data.get("at")
        return SessionStatus(
            session_id=process.session_id,
            sandbox_id=process.sandbox_id,
            process_id=process.id,
            os_pid=None,
            started_at=process.started_at or process.created_at,
            exited_at=datetime.fromisoformat(at) if isinstance(at, str) else None,
            exit_code=None if self.is_lost else self.data.get("exit_code"),
            signal=None if self.is_lost else self.data.get("signal"),
            reason=self.data.get("reason"),
            stdout_bytes=written[0],
            stderr_bytes=written[1],
            is_lost=self.is_lost,
        )


class Collector:
    """Follows one session's records to the final one, in memory bounded by the limit."""

    def __init__(self, process: Process, *, max_output_bytes: int) -> None:
        self._process = process
        self._stdout = HeadAndTail(max_output_bytes)
        self._stderr = HeadAndTail(max_output_bytes)

    @property
    def written(self) -> tuple[int, int]:
        return self._stdout.total, self._stderr.total

    async def follow(self, records: AsyncIterator[JournalRecord | Trimmed]) -> Ending:
        """Take records until the final one; `Unavailable` if they end before it."""
        async for record in records:
            if isinstance(record, Trimmed):
                continue  # the next record's offset tells what is missing
            if record.kind.is_final:
                return Ending(kind=record.kind, data=_object(record.payload))
            if record.kind.is_output:
                stream = self._stderr if record.kind is RecordKind.STDERR else self._stdout
                stream.add(record.payload, offset=record.stream_offset)
        raise Unavailable(
            f"the node stopped answering while the command ran; session {self._process.session_id} has its output",
            session_id=self._process.session_id,
            process_id=self._process.id,
        )

    def result(self, ending: Ending, *, duration_ms: int) -> ExecResult:
        """Put the answer together."""
        session_id = self._process.session_id
        data = ending.data
        is_lost = ending.is_lost
        return ExecResult(
            exit_code=None if is_lost else data.get("exit_code"),
            signal=None if is_lost else data.get("signal"),
            reason=f"sandbox_lost: {data.get('reason')}" if is_lost else data.get("reason"),
            stdout=self._stdout.value(session_id=session_id),
            stderr=self._stderr.value(session_id=session_id),
            stdout_truncated=self._stdout.is_truncated,
            stderr_truncated=self._stderr.is_truncated,
            stdout_bytes=self._stdout.total,
            stderr_bytes=self._stderr.total,
            session_id=session_id,
            process_id=self._process.id,
            duration_ms=duration_ms,
        )


def _object(payload: bytes) -> dict[str, Any]:
    value = json.loads(payload)
    return value if isinstance(value, dict) else {}

"""What a journal says of its session: whose it is, and how its process began and ended."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from space.core.ids import ProcessId, SandboxId, SessionId
from space.core.journal import JournalRecord, RecordKind
from space.core.node import MachineRef
from space.core.ports import SessionStatus

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalHead:
    """Whose journal it is; the first record of the file."""

    session_id: SessionId
    process_id: ProcessId
    ref: MachineRef  #: the machine that the process runs on
    is_pty: bool = False

    def encode(self) -> bytes:
        return json.dumps(
            {
                "version": VERSION,
                "session_id": self.session_id,
                "process_id": self.process_id,
                "sandbox_id": self.ref.sandbox_id,
                "generation": self.ref.generation,
                "pty": self.is_pty,
            }
        ).encode()

    @classmethod
    def decode(cls, payload: bytes) -> "JournalHead":
        """Raise ValueError if `payload` is no head that this version reads."""
        try:
            found = json.loads(payload)
            if found["version"] != VERSION:
                raise ValueError(f"journal version {found['version']!r} is not {VERSION}")
            return cls(
                session_id=SessionId(found["session_id"]),
                process_id=ProcessId(found["process_id"]),
                ref=MachineRef(SandboxId(found["sandbox_id"]), int(found["generation"])),
                is_pty=bool(found["pty"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError("not a journal's head") from error


@dataclass(slots=True)
class Summary:
    """The process's start and end as the journal has them."""

    head: JournalHead
    started: Mapping[str, Any] = field(default_factory=dict)
    ended: Mapping[str, Any] = field(default_factory=dict)
    final: RecordKind | None = None
    is_rolled_back: bool = False  #: that was the last thing that happened

    def note(self, record: JournalRecord) -> None:
        """Take in a record, if it tells of a start or an end."""
        if record.kind is RecordKind.PROCESS_STARTED:
            self.started = json.loads(record.payload)
        elif record.kind.is_final:
            self.ended = json.loads(record.payload)
            self.final = record.kind
        elif record.kind is RecordKind.ROLLED_BACK:
            self.ended, self.final = {}, None
        self.is_rolled_back = record.kind is RecordKind.ROLLED_BACK

    def status(self, written: tuple[int, int, int], *, held_back: str | None = None) -> SessionStatus:
        """Combine it with the bytes of stdout, stderr and pty written so far and why writing is held back."""
        stdout, stderr, pty = written
        return SessionStatus(
            session_id=self.head.session_id,
            sandbox_id=self.head.ref.sandbox_id,
            process_id=self.head.process_id,
            os_pid=self.started.get("os_pid"),
            started_at=_time(self.started),
            exited_at=_time(self.ended),
            exit_code=self.ended.get("exit_code"),
            signal=self.ended.get("signal"),
            reason=self.ended.get("reason") if self.final else held_back,
            stdout_bytes=stdout + pty,
            stderr_bytes=stderr,
            is_lost=self.final is RecordKind.SANDBOX_LOST,
        )


def _time(event: Mapping[str, Any]) -> datetime | None:
    return datetime.fromisoformat(event["at"]) if "at" in event else None

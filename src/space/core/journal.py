"""What a command's journal holds: one file a session, whose offsets are the SSE event ids (DESIGN §5)."""

from dataclasses import dataclass
from enum import IntEnum


class RecordKind(IntEnum):
    """The kind byte of a record.  Output kinds carry raw bytes, the others a JSON object in UTF-8."""

    PROCESS_STARTED = 1  #: {"process_id", "os_pid", "at"}
    STDOUT = 2
    STDERR = 3
    PTY = 4
    PROCESS_EXITED = 5  #: {"exit_code", "signal", "reason", "at", "stdout_bytes", "stderr_bytes"}
    SANDBOX_LOST = 6  #: {"reason"}
    ROLLED_BACK = 7  #: {"stdout_offset", "stderr_offset"} and a terminal's "pty_offset": from where they go on

    @property
    def is_output(self) -> bool:
        return self in (RecordKind.STDOUT, RecordKind.STDERR, RecordKind.PTY)

    @property
    def is_final(self) -> bool:
        """Whether nothing follows it; `ROLLED_BACK` does if its machine is restored from an earlier moment."""
        return self in (RecordKind.PROCESS_EXITED, RecordKind.SANDBOX_LOST)


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One record as a reader gets it.  `position` is the journal offset after it: the SSE id to resume from."""

    position: int
    kind: RecordKind
    stream_offset: int  #: offset of the first byte in its own stream; 0 for records without output
    payload: bytes


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What a reader gets instead of records that the size limit removed; it goes on from `oldest_position`."""

    oldest_position: int

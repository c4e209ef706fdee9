"""Commands: a session that streams, and the one process in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from space.core.ids import ProcessId, ProjectId, SandboxId, SessionId, TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class Pty:
    """The size of a terminal in characters."""

    cols: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """A validated request to run a program.  A `shell` line has become `argv` already."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None  #: None: the user's home
    user: str | None = None  #: None: the template's user
    stdin: bool = False  #: a pipe that callers write to; else /dev/null
    pty: Pty | None = None
    timeout_seconds: float = 0  #: 0: none; at the deadline the process group is killed
    start_now: bool = False  #: else the first reader starts it


class ProcessState(StrEnum):
    """Where a process is."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"  #: its machine died; nobody knows how it ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process and its session: they are one to one.  `generation` names the machine it was started on."""

    id: ProcessId
    session_id: SessionId
    sandbox_id: SandboxId
    project_id: ProjectId
    generation: int
    spec: CommandSpec
    state: ProcessState
    is_start_requested: bool = False  #: somebody asked to start it, so the node may have; set before the node is told
    os_pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    reason: str | None = None  #: `timeout`, `oom`, `killed`, `spawn_failed: …`, or why it was lost
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    created_at: datetime
    started_at: datetime | None = None
    exited_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionToken:
    """A short-lived right to read one session.  Only the SHA-256 of the secret is kept."""

    session_id: SessionId
    token_hash: bytes
    principal: str
    token_id: TokenId  #: what its holder signed in with; revoking that ends this one too
    expires_at: datetime

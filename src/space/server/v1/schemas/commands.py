"""Commands, sessions and processes on the wire."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from space.core.command import CommandSpec
from space.core.command import Pty as CorePty
from space.server.schemas import NO_NUL, WHOLE, Asked, Query, Shown, exactly_one
from space.server.v1.schemas.shared import Cursor, Env, GuestPath, Limit, UserName

MAX_ARGV = 4096
MAX_ARGV_BYTES = 262_144
MAX_ENV_BYTES = 262_144
MAX_TIMEOUT_SECONDS = 2_592_000
Argument = Annotated[str, Field(max_length=MAX_ARGV_BYTES, pattern=NO_NUL)]

SignalName = Literal[
    "SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGUSR1", "SIGSEGV",
    "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU",
    "SIGURG", "SIGXCPU", "SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGIO", "SIGSYS",
]  # fmt: skip


class Pty(Asked):
    """The size of a terminal, in characters."""

    cols: Annotated[int, Field(ge=1, le=4096), WHOLE] = 80
    rows: Annotated[int, Field(ge=1, le=4096), WHOLE] = 24

    def to_core(self) -> CorePty:
        return CorePty(cols=self.cols, rows=self.rows)


class Command(Asked):
    """A program to run: `argv`, or a line for the shell."""

    model_config = exactly_one("argv", "shell")

    argv: Annotated[
        list[Argument],
        Field(
            default_factory=list,
            min_length=1,
            max_length=MAX_ARGV,
            description="The program and its arguments; at most 262,144 bytes in all.",
            json_schema_extra={"prefixItems": [{"type": "string", "minLength": 1}]},
        ),
    ]
    shell: Annotated[
        str,
        Field(
            default_factory=str,
            min_length=1,
            max_length=MAX_ARGV_BYTES,
            pattern=NO_NUL,
            description="A line for `/bin/sh -c`; instead of `argv`.",
        ),
    ]
    env: Env = Field(default={})
    cwd: GuestPath | None = None
    user: UserName | None = None
    stdin: Literal["none", "pipe"] = "none"
    pty: Pty | None = None
    timeout_seconds: Annotated[float, Field(ge=0, le=MAX_TIMEOUT_SECONDS, description="0: none.")] = 0
    start: Annotated[
        Literal["attach", "now"], Field(description="`attach`: the first reader of the events starts it.")
    ] = "attach"

    @model_validator(mode="after")
    def _is_bounded(self) -> "Command":
        if bool(self.argv) == bool(self.shell):
            raise ValueError("give either argv or shell")
        if self.argv and not self.argv[0]:
            raise ValueError("argv[0] is empty: it names the program")
        if sum(len(argument.encode()) + 1 for argument in self.words) > MAX_ARGV_BYTES:
            raise ValueError(f"argv is longer than {MAX_ARGV_BYTES} bytes")
        if sum(len(name.encode()) + len(value.encode()) + 2 for name, value in self.env.items()) > MAX_ENV_BYTES:
            raise ValueError(f"env is longer than {MAX_ENV_BYTES} bytes")
        return self

    @property
    def words(self) -> tuple[str, ...]:
        """The program and its arguments; a shell line is one argument of a shell."""
        return tuple(self.argv) if self.argv else ("/bin/sh", "-c", self.shell)

    def to_core(self, *, start_now: bool | None = None) -> CommandSpec:
        return CommandSpec(
            argv=self.words,
            env=self.env,
            cwd=self.cwd,
            user=self.user,
            stdin=self.stdin == "pipe",
            pty=self.pty.to_core() if self.pty is not None else None,
            timeout_seconds=self.timeout_seconds,
            start_now=self.start == "now" if start_now is None else start_now,
        )


class Exec(Command):
    """A program to run to its end in one call."""

    max_output_bytes: Annotated[
        int,
        Field(ge=0, le=16_777_216, description="Per stream; of more, head and tail are answered."),
        WHOLE,
    ] = 1_048_576
    encoding: Annotated[
        Literal["utf-8", "base64"],
        Field(description="Of stdout and stderr in the answer; `utf-8` replaces what is no UTF-8, `base64` is exact."),
    ] = "utf-8"


class Signal(Asked):
    """A signal for a process group."""

    signal: SignalName


class ProcessQuery(Query):
    """Chooses processes."""

    limit: Limit = 100
    cursor: Cursor = None


class Session(Shown):
    """A command's stream, and the right to read it."""

    id: str
    events_url: str
    token: str = Field(description="Bearer token for `events_url`, for this session only.")
    token_expires_at: datetime


class Process(Shown):
    """A process; null where there is nothing to say yet."""

    id: str
    session_id: str
    sandbox_id: str
    os_pid: int | None
    argv: list[str]
    state: Literal["created", "running", "exited", "lost"]
    exit_code: int | None
    signal: str | None
    reason: str | None
    stdout_bytes: int
    stderr_bytes: int
    created_at: datetime
    started_at: datetime | None
    exited_at: datetime | None


class CommandCreated(Shown):
    """A new command: its session and its process."""

    session: Session
    process: Process


class ProcessPage(Shown):
    """A page of processes."""

    items: list[Process]
    next_cursor: str | None


class ExecResult(Shown):
    """How a program ended, and what it wrote."""

    exit_code: int | None
    signal: str | None
    reason: str | None
    stdout: str
    stderr: str
    encoding: Literal["utf-8", "base64"]
    stdout_truncated: bool
    stderr_truncated: bool
    stdout_bytes: int = Field(description="Written in all, answered or not.")
    stderr_bytes: int
    session_id: str = Field(description="Its events hold the whole output.")
    process_id: str
    duration_ms: int

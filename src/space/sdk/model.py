"""What the server answers, as frozen dataclasses.  Fields that a newer server adds are ignored; `raw` has them all."""

import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from space.sdk.errors import ProtocolError, SpaceError, error_from_envelope
from space.sdk.times import parse_time

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """A sandbox as the server showed it at one moment."""

    id: str
    state: str  #: creating running pausing paused suspending suspended waking recovering deleting deleted failed
    template: str
    template_digest: str | None
    runtime: str | None
    resources: Mapping[str, int]
    metadata: Mapping[str, str]
    env_keys: tuple[str, ...]
    generation: int | None
    operation_id: str | None
    reason: str | None  #: why it failed or came down unasked
    created_at: datetime | None
    started_at: datetime | None
    last_active_at: datetime | None
    expires_at: datetime | None
    restorable: bool  #: whether `recover` can bring it back if it fails
    snapshot_id: str | None  #: its last durable state
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> "SandboxInfo":
        template = body.get("template") or {}
        return cls(
            id=_text(body, "id"),
            state=str(body.get("state", "")),
            template=str(template.get("name", "")) if isinstance(template, dict) else str(template),
            template_digest=template.get("digest") if isinstance(template, dict) else None,
            runtime=body.get("runtime"),
            resources=body.get("resources") or {},
            metadata=body.get("metadata") or {},
            env_keys=tuple(body.get("env_keys") or ()),
            generation=body.get("generation"),
            operation_id=body.get("operation_id"),
            reason=body.get("reason"),
            created_at=parse_time(body.get("created_at")),
            started_at=parse_time(body.get("started_at")),
            last_active_at=parse_time(body.get("last_active_at")),
            expires_at=parse_time(body.get("expires_at")),
            restorable=bool(body.get("restorable", False)),
            snapshot_id=body.get("snapshot_id"),
            raw=body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A change under way, or how it ended."""

    id: str
    kind: str
    sandbox_id: str | None
    status: str  #: queued running succeeded failed cancelled
    step: str | None  #: what it is doing, or what it failed at
    progress: Mapping[str, int | None]  #: `step_count`, `steps_done`, `bytes_read`, `bytes_new`, `bytes_uploaded`
    snapshot_id: str | None  #: that it makes, or starts from
    error: Mapping[str, Any] | None
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> "Operation":
        return cls(
            id=_text(body, "id"),
            kind=str(body.get("kind", "")),
            sandbox_id=body.get("sandbox_id"),
            status=str(body.get("status", "")),
            step=body.get("step"),
            progress=body.get("progress") or {},
            snapshot_id=body.get("snapshot_id"),
            error=body.get("error"),
            raw=body,
        )

    @property
    def is_final(self) -> bool:
        return self.status in ("succeeded", "failed", "cancelled")

    def failure(self) -> SpaceError | None:
        """Return the error that it ended with; None unless it failed or was cancelled."""
        if self.status not in ("failed", "cancelled"):
            return None
        error = self.error or {
            "code": "conflict",
            "message": f"the operation {self.id} ({self.kind}) was {self.status}",
        }
        return error_from_envelope(
            error,
            details={"operation_id": self.id, **(error.get("details") or {})},
            retryable=error.get("retryable") is True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """A moment of a sandbox, as the server showed it."""

    id: str
    name: str | None
    sandbox_id: str
    state: str  #: uploading ready deleting
    purpose: str  #: suspend fork named
    runtime: str | None
    template: str
    resources: Mapping[str, int]
    bytes_read: int  #: of memory, state and output
    bytes_new: int  #: of these, what the sandbox's last snapshot did not have
    bytes_uploaded: int  #: compressed
    created_at: datetime | None
    ready_at: datetime | None
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> "SnapshotInfo":
        template = body.get("template") or {}
        return cls(
            id=_text(body, "id"),
            name=body.get("name"),
            sandbox_id=str(body.get("sandbox_id", "")),
            state=str(body.get("state", "")),
            purpose=str(body.get("purpose", "")),
            runtime=body.get("runtime"),
            template=str(template.get("name", "")) if isinstance(template, dict) else str(template),
            resources=body.get("resources") or {},
            bytes_read=int(body.get("bytes_read") or 0),
            bytes_new=int(body.get("bytes_new") or 0),
            bytes_uploaded=int(body.get("bytes_uploaded") or 0),
            created_at=parse_time(body.get("created_at")),
            ready_at=parse_time(body.get("ready_at")),
            raw=body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """A process as the server showed it at one moment."""

    id: str
    session_id: str
    state: str  #: created running exited lost
    argv: tuple[str, ...]
    os_pid: int | None
    exit_code: int | None
    signal: str | None
    reason: str | None
    started_at: datetime | None
    exited_at: datetime | None
    stdout_bytes: int
    stderr_bytes: int
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> "ProcessInfo":
        return cls(
            id=_text(body, "id"),
            session_id=str(body.get("session_id", "")),
            state=str(body.get("state", "")),
            argv=tuple(body.get("argv") or ()),
            os_pid=body.get("os_pid"),
            exit_code=body.get("exit_code"),
            signal=body.get("signal"),
            reason=body.get("reason"),
            started_at=parse_time(body.get("started_at")),
            exited_at=parse_time(body.get("exited_at")),
            stdout_bytes=int(body.get("stdout_bytes") or 0),
            stderr_bytes=int(body.get("stderr_bytes") or 0),
            raw=body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How a command ended and what it printed.

    With `exec` the server keeps head and tail of each stream up to `max_output_bytes` and sets `…_truncated`.
    Non-UTF-8 output is whole in `stdout_bytes`; `stdout` shows it with U+FFFD.
    """

    exit_code: int | None
    signal: str | None
    reason: str | None
    stdout_bytes: bytes
    stderr_bytes: bytes
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    session_id: str | None = None  #: its events hold the whole output
    process_id: str | None = None
    duration_ms: float | None = None

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> "ExecResult":
        return cls(
            exit_code=body.get("exit_code"),
            signal=body.get("signal"),
            reason=body.get("reason"),
            stdout_bytes=_output(body, "stdout"),
            stderr_bytes=_output(body, "stderr"),
            stdout_truncated=bool(body.get("stdout_truncated", False)),
            stderr_truncated=bool(body.get("stderr_truncated", False)),
            session_id=body.get("session_id"),
            process_id=body.get("process_id"),
            duration_ms=body.get("duration_ms"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """One path in a sandbox."""

    path: str
    type: str  #: file directory symlink other
    size: int
    mode: int | None
    user: str | None
    group: str | None
    modified_at: datetime | None
    target: str | None
    etag: str | None

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> "FileInfo":
        mode = body.get("mode")
        return cls(
            path=_text(body, "path"),
            type=str(body.get("type", "")),
            size=int(body.get("size") or 0),
            mode=int(mode, 8) if isinstance(mode, str) else mode,
            user=body.get("user"),
            group=body.get("group"),
            modified_at=parse_time(body.get("modified_at")),
            target=body.get("target"),
            etag=body.get("etag"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEvent:
    """A change below a watched path; `overflow` means that some were missed: list again."""

    kind: str  #: created modified removed moved overflow
    path: str
    at: datetime | None

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> "FileEvent":
        return cls(kind=str(body.get("kind", "")), path=str(body.get("path", "")), at=parse_time(body.get("at")))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """One entry of a sandbox's timeline."""

    seq: int
    type: str  #: e.g. `sandbox.created`
    data: Mapping[str, Any]
    at: datetime | None
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> "TimelineEvent":
        return cls(
            seq=int(body.get("seq") or 0),
            type=str(body.get("type", "")),
            data=body.get("data") or {},
            at=parse_time(body.get("at")),
            raw=body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSession:
    """A user's session; the token is left out of its repr."""

    api_url: str
    token: str = field(repr=False)
    expires_at: datetime | None
    user: Mapping[str, Any]

    @classmethod
    def parse(cls, body: Mapping[str, Any], api_url: str) -> "LoginSession":
        return cls(
            api_url=api_url,
            token=_text(body, "token"),
            expires_at=parse_time(body.get("expires_at")),
            user=body.get("user") or {},
        )


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items of a list, and the cursor for those after them."""

    items: tuple[T, ...]
    next_cursor: str | None


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key) if isinstance(body, Mapping) else None
    if not isinstance(value, str):
        raise ProtocolError(f"the server's answer lacks {key!r}")
    return value


def _output(body: Mapping[str, Any], key: str) -> bytes:
    value = str(body.get(key) or "")
    return binascii.a2b_base64(value) if body.get("encoding") == "base64" else value.encode()

"""What a command's stream tells, typed; and how frames become that."""

import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from space.sdk.errors import ProtocolError
from space.sdk.sse import Frame
from space.sdk.times import parse_time

Stream = Literal["stdout", "stderr", "pty"]


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """The process runs; the first event."""

    process_id: str
    os_pid: int | None
    at: datetime | None
    position: int | None = None  #: journal offset after it: pass it as `start` to go on from here


@dataclass(frozen=True, slots=True)
class Output:
    """Some bytes of one stream.  `offset` is where they begin in that stream."""

    stream: Stream
    data: bytes
    offset: int
    position: int | None = None

    @property
    def text(self) -> str:
        """`data` as UTF-8; a character cut by the frame's end shows as U+FFFD, so join bytes before decoding."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """The process ended: the only sign of completion.  `exit_code` is None if a signal ended it."""

    exit_code: int | None
    signal: str | None
    reason: str | None
    at: datetime | None
    stdout_bytes: int
    stderr_bytes: int
    position: int | None = None


@dataclass(frozen=True, slots=True)
class SandboxLost:
    """The machine died; how the process ended is not known.  Nothing follows, unless `recover` brings it back."""

    reason: str
    position: int | None = None


@dataclass(frozen=True, slots=True)
class ResyncRequired:
    """Output was lost to the journal's size limit; the stream goes on from `oldest_offset` of the journal."""

    oldest_offset: int
    position: int | None = None


@dataclass(frozen=True, slots=True)
class RolledBack:
    """After `recover`: the restored process went back to these offsets and may print the same bytes again."""

    stdout_offset: int
    stderr_offset: int
    position: int | None = None


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event that this version of the SDK does not know; safe to ignore."""

    event: str
    data: Mapping[str, Any]
    position: int | None = None


Event = ProcessStarted | Output | ProcessExited | SandboxLost | ResyncRequired | RolledBack | UnknownEvent
Final = ProcessExited | SandboxLost

_STREAMS: Mapping[str, Stream] = {"stdout": "stdout", "stderr": "stderr", "pty": "pty"}
_DATA = b'"data":'
_OFFSET = b'"offset":'


def decode_event(frame: Frame) -> Event:
    """Turn a frame of a command's stream into an event."""
    position = int(frame.id) if frame.id is not None and frame.id.isascii() and frame.id.isdigit() else None
    event = frame.event
    try:
        stream = _STREAMS.get(event)
        if stream is not None:
            data, offset = decode_output(frame.data)
            return Output(stream, data, offset, position)
        return _decode_other(event, json.loads(frame.data), position)
    except (ValueError, KeyError, TypeError) as error:  # binascii.Error is a ValueError
        raise ProtocolError(f"the stream sent a malformed {event!r} event: {error!r}") from error


def decode_output(data: bytes) -> tuple[bytes, int]:
    """Return the bytes and the offset of `{"data": "<base64>", "offset": n}`, in any order and spacing.

    Base64 holds no quote and no backslash, so the value is cut out by two searches and decoded in place: ten times
    as fast as through a JSON parser, which would make a string of it first.
    """
    start = data.find(_DATA, 0, 16)
    at = data.rfind(_OFFSET)
    if start == 1 and at > 0:
        first = data.find(b'"', start + len(_DATA)) + 1
        last = data.find(b'"', first)
        if 0 < first <= last < at and data[at + len(_OFFSET) : -1].strip().isdigit():
            return binascii.a2b_base64(memoryview(data)[first:last], strict_mode=last > first), int(
                data[at + len(_OFFSET) : -1]
            )
    body = json.loads(data)
    return binascii.a2b_base64(body["data"], strict_mode=bool(body["data"])), int(body["offset"])


def _decode_other(event: str, body: Mapping[str, Any], position: int | None) -> Event:
    match event:
        case "process_started":
            return ProcessStarted(body["process_id"], body.get("os_pid"), parse_time(body.get("at")), position)
        case "process_exited":
            return ProcessExited(
                body.get("exit_code"),
                body.get("signal"),
                body.get("reason"),
                parse_time(body.get("at")),
                int(body.get("stdout_bytes") or 0),
                int(body.get("stderr_bytes") or 0),
                position,
            )
        case "sandbox_lost":
            return SandboxLost(str(body.get("reason") or "unknown"), position)
        case "resync_required":
            return ResyncRequired(int(body["oldest_offset"]), position)
        case "rolled_back":
            return RolledBack(int(body["stdout_offset"]), int(body["stderr_offset"]), position)
        case _:
            return UnknownEvent(event, body, position)

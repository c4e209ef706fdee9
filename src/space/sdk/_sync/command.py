# Generated from ../_async/command.py by scripts/generate_sync_sdk.py: change it there.
"""A command that runs in a sandbox, and its stream of events."""

import time
from collections import deque
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Literal

import httpx

from space.sdk import http
from space.sdk._sync.transport import Transport
from space.sdk.errors import ProtocolError, SandboxLostError, SpaceError, UnauthorizedError, UnreachableError
from space.sdk.events import Event, Output, ProcessExited, ResyncRequired, RolledBack, SandboxLost, decode_event
from space.sdk.model import ExecResult, ProcessInfo
from space.sdk.retry import Reconnection
from space.sdk.sse import FrameParser, FrameTooLargeError


class Command:
    """One process.  Iterate it for its events; it reconnects by itself and ends only with the process.

    Each iteration begins where the last one stopped, so a loop that was left may be taken up again.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        sandbox_id: str,
        session_id: str,
        process_id: str,
        events_url: str,
        token: str,
        patience: float = 120.0,
    ) -> None:
        self._transport = transport
        self.sandbox_id = sandbox_id
        self.session_id = session_id
        self.process_id = process_id
        self._events_url = events_url
        self._token = token
        self._patience = patience
        self._events: Events | None = None
        self.exit: ProcessExited | None = None  #: how it ended, once an iteration has seen it

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.process_id} in {self.sandbox_id}>"

    @classmethod
    def from_answer(
        cls, transport: Transport, sandbox_id: str, body: Mapping[str, Any], *, patience: float = 120.0
    ) -> "Command":
        """Make a command of the answer to its creation."""
        try:
            session, process = body["session"], body["process"]
            return cls(
                transport,
                sandbox_id=sandbox_id,
                session_id=session["id"],
                process_id=process["id"],
                events_url=session["events_url"],
                token=session["token"],
                patience=patience,
            )
        except (KeyError, TypeError) as error:
            raise ProtocolError(f"the server's answer to a new command lacks {error}") from error

    def events(self, *, start: int | None = None) -> "Events":
        """Open another reader, from the beginning or from the `position` of an event that was seen before."""
        return Events(self, start=start, patience=self._patience)

    def __iter__(self) -> Iterator[Event]:
        if self._events is None:
            self._events = self.events()
        return self._events

    def wait(self) -> ProcessExited:
        """Read to the end and return how it ended; raises `SandboxLostError` if the machine died."""
        for event in self:
            if isinstance(event, SandboxLost):
                raise SandboxLostError(f"the sandbox was lost ({event.reason}) while the command ran")
        if self.exit is None:
            raise ProtocolError("the stream ended without telling how the process ended")
        return self.exit

    def output(self) -> ExecResult:
        """Read to the end and return all that was printed; a terminal's output is in `stdout`."""
        parts: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        lost: list[str] = []
        for event in self:
            if isinstance(event, Output):
                parts["stderr" if event.stream == "stderr" else "stdout"].append(event.data)
            elif isinstance(event, ResyncRequired):
                lost = ["stdout", "stderr"]
            elif isinstance(event, RolledBack) and not lost:  # it prints what came after these offsets again
                for stream, offset in (("stdout", event.stdout_offset), ("stderr", event.stderr_offset)):
                    parts[stream] = [b"".join(parts[stream])[:offset]]
        ended = self.wait()
        return ExecResult(
            exit_code=ended.exit_code,
            signal=ended.signal,
            reason=ended.reason,
            stdout_bytes=b"".join(parts["stdout"]),
            stderr_bytes=b"".join(parts["stderr"]),
            stdout_truncated="stdout" in lost,
            stderr_truncated="stderr" in lost,
            session_id=self.session_id,
            process_id=self.process_id,
        )

    def info(self) -> ProcessInfo:
        """Ask the server for the process's state."""
        return ProcessInfo.parse(http.answer_object(self._transport.request("GET", self._path)))

    def kill(self) -> None:
        """Kill the process group; killing what has ended succeeds."""
        self._transport.request("POST", f"{self._path}/kill")

    def signal(self, name: str) -> None:
        """Send a signal such as `SIGTERM` to the process group."""
        self._transport.request("POST", f"{self._path}/signal", json={"signal": name})

    def write(self, data: bytes) -> None:
        """Write to the process's standard input; it must have been started with `stdin=True` or a terminal."""
        self._transport.request(
            "PUT",
            f"{self._path}/stdin",
            content=lambda: data,
            headers={"Content-Type": "application/octet-stream"},
            only_unsent=True,  # the same bytes again would reach the process twice
            timeout=http.UNHURRIED,  # the call returns when the process has read
        )

    def close_stdin(self) -> None:
        """Let the process see the end of its standard input."""
        self._transport.request("DELETE", f"{self._path}/stdin")

    def resize(self, cols: int, rows: int) -> None:
        """Tell the process its terminal's new size."""
        self._transport.request("POST", f"{self._path}/resize", json={"cols": cols, "rows": rows})

    def close(self) -> None:
        """Close the stream of `for`; the process runs on."""
        if self._events is not None:
            self._events.close()

    @property
    def _path(self) -> str:
        return f"/v1/sandboxes/{self.sandbox_id}/processes/{self.process_id}"

    def _renew_token(self) -> None:
        response = self._transport.request(
            "POST", f"/v1/sandboxes/{self.sandbox_id}/sessions/{self.session_id}/token", attempts=1
        )
        session = http.answer_object(response)
        if not isinstance(session.get("token"), str):
            raise ProtocolError("the server renewed the session token without saying the token")
        self._token = session["token"]
        self._events_url = session.get("events_url") or self._events_url


class Events:
    """An iterator over a command's events that outlives its connections.

    It remembers the last journal offset, so each event comes once and in order, whatever breaks in between.  It gives
    up only when the server says that it is no use, or when nothing has arrived for `patience` seconds.
    """

    def __init__(self, command: Command, *, start: int | None = None, patience: float = 120.0) -> None:
        self._command = command
        self._reconnection = Reconnection(patience)
        self._pending: deque[Event] = deque()
        self._response: httpx.Response | None = None
        self._pieces: Iterator[bytes] | None = None
        self._parser = FrameParser()
        self._is_over = False
        self._start = start
        self.position = start or 0  #: journal offset of the last event that was received
        self.reconnects = 0  #: how often the stream was taken up again

    def __iter__(self) -> "Events":
        return self

    def __next__(self) -> Event:
        while not self._pending:
            if self._is_over:
                raise StopIteration
            self._receive()
        event = self._pending.popleft()
        if isinstance(event, ProcessExited):
            self._command.exit = event
        return event

    def __enter__(self) -> "Events":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        self.close()
        return False

    def close(self) -> None:
        """Close the connection; a later iteration goes on from here."""
        response, self._response, self._pieces = self._response, None, None
        if response is not None:
            response.close()

    def _receive(self) -> None:
        """Wait for the next piece of the stream, or for a new connection; both may have given no event yet."""
        try:
            if self._pieces is None:
                self._connect()
                return
            piece = next(self._pieces, b"")
        except SpaceError as error:
            self._pause_after(error)
        except (httpx.HTTPError, httpx.StreamError) as error:
            self._pause_after(http.fault(error, self._url))
        except BaseException:  # cancelled, or Ctrl-C: httpx has closed the connection; the next call opens another
            self._response = self._pieces = None
            raise
        else:
            if piece:
                self._reconnection.saw_life(time.monotonic())
                self._take(piece)
            else:  # the server closed the stream and the process has not ended
                self._pause_after(UnreachableError("the server closed the stream", retryable=True))
        if self._is_over:
            self.close()

    def _connect(self) -> None:
        self._parser = FrameParser()
        try:
            response = self._open()
        except UnauthorizedError:
            self._command._renew_token()
            response = self._open()
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            response.close()
            raise ProtocolError(f"{http.origin(self._url)} answered {kind or 'nothing'} in place of an event stream")
        self._response = response
        self._pieces = response.iter_raw()

    def _open(self) -> httpx.Response:
        last = str(self.position) if self.position else None
        return self._command._transport.open_stream(
            self._url, token=self._command._token, last_event_id=last, start=self._start
        )

    def _take(self, piece: bytes) -> None:
        try:
            for frame in self._parser.feed(piece):
                event = decode_event(frame)
                if event.position is not None:
                    if event.position <= self.position and not isinstance(event, ResyncRequired):
                        continue  # had it already
                    self.position = max(self.position, event.position)
                if isinstance(event, ResyncRequired):
                    self.position = max(self.position, event.oldest_offset)
                self._pending.append(event)
                self._is_over = self._is_over or isinstance(event, ProcessExited | SandboxLost)
        except FrameTooLargeError as error:
            raise ProtocolError(str(error)) from error

    def _pause_after(self, error: SpaceError) -> None:
        self.close()
        if not error.retryable:
            raise error
        delay = self._reconnection.delay_at(time.monotonic(), error.retry_after)
        if delay is None:
            raise error
        self.reconnects += 1
        time.sleep(delay)

    @property
    def _url(self) -> str:
        settings = self._command._transport.settings
        return http.on_data_plane(self._command._events_url, settings.data_plane_url, settings.api_url)

"""`GET /v1/sessions/{id}/events`: what a command wrote, from its first byte or from where a reader stopped.

The first reader starts a command that waits for one.  A session's token opens streams for five minutes; its expiry
never ends one that is open, losing the right to call at all does.
"""

from contextlib import aclosing
from typing import Annotated, Literal

from fastapi import Query as QueryParameters
from pydantic import Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from space.core.command import SessionToken
from space.core.errors import (
    FailedPrecondition,
    GuestUnreachable,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    Unauthenticated,
)
from space.core.journal import RecordKind
from space.server.bearer import bearer
from space.server.binding import id_path
from space.server.dataplane.follow import Follower
from space.server.dataplane.frames import Base64Frames, Framing, PlainBytes, TextFrames
from space.server.documentation import Answer, Document, header_parameter
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.schemas import Query
from space.server.services import Services

routes = Routes("commands")

SESSION = "ses06d1q8vg3rq5n7h2c4f9k0e8s8"
SessionIdPath = Annotated[str, *id_path("ses", "The session's id.", SESSION)]
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}
STREAMS = {"stdout": RecordKind.STDOUT, "stderr": RecordKind.STDERR, "pty": RecordKind.PTY}
MAX_POSITION = 2**62
EXAMPLE = """\
id: 96
event: process_started
data: {"process_id":"prc06d1q8vg3rq5n7h2c4f9k0e8sc","os_pid":17,"at":"2026-12-01T09:30:00.000000Z"}

id: 112
event: stdout
data: {"data":"NDIK","offset":0}

id: 247
event: process_exited
data: {"exit_code":0,"signal":null,"reason":null,"at":"2026-12-01T09:30:00.041000Z","stdout_bytes":3,"stderr_bytes":0}

"""


class EventsQuery(Query):
    """Where to begin, and in which form."""

    from_: Annotated[
        int | None,
        Field(
            alias="from", ge=0, le=MAX_POSITION, description="The `id` of the last event seen; `Last-Event-ID` wins."
        ),
    ] = None
    stream: Annotated[
        Literal["stdout", "stderr", "pty"] | None, Field(description="Only this stream's output; default: all.")
    ] = None
    encoding: Annotated[
        Literal["base64", "utf-8", "raw"],
        Field(description="Of output: `base64` is exact, `utf-8` readable, `raw` the bytes alone, without events."),
    ] = "base64"


@routes.add(
    "GET",
    "/v1/sessions/{session_id}/events",
    rule=Rule(is_public=True, is_stream=True, scheme="sessionToken"),
    document=Document(
        id="readSessionEvents",
        summary="Follow a command's events",
        tag=routes.tag,
        is_published=True,
        is_data_plane=True,
        description=(
            "Events: `process_started`, `stdout`, `stderr`, `pty`, `process_exited` (the only sign of completion), "
            "`sandbox_lost`, `resync_required`, `rolled_back`. `id` is the journal offset after the record: "
            "reconnecting with it replays what was missed, once and in order, then goes on live.  Reading from the "
            "beginning what has not ended wakes a sandbox with `wake_on_request`; going on after a break does not."
        ),
        parameters=(
            header_parameter("Last-Event-ID", "The `id` of the last event seen.", "112", pattern=r"^\d{1,19}$"),
        ),
        answers={200: Answer(description="The events.", media_type="text/event-stream", examples={"printed": EXAMPLE})},
        raises=(
            Unauthenticated("no valid session token; renew it at POST /v1/sandboxes/{id}/sessions/{sid}/token"),
            PermissionDenied("this token is for another session"),
            NotFound("there is no such session"),
            InvalidRequest("the session has no record that ends at 97", field="from"),
            FailedPrecondition("the sandbox is suspended; it must be running", current_state="suspended"),
            GuestUnreachable("the sandbox does not answer; try again"),
        ),
    ),
)
async def read_session_events(
    request: ApiRequest, session_id: SessionIdPath, query: Annotated[EventsQuery, QueryParameters()]
) -> Response:
    """Follow a session."""
    commands = request.services.commands
    token = await commands.verify_session_token(bearer(request))
    if token.session_id != session_id:
        raise PermissionDenied("this token is for another session")
    start = _start(request, query)
    await commands.attach(session_id, token, goes_on=start > 0)
    if start:
        await _require_boundary(request.services, session_id, start)
    return _Events(request.services, token, start, _framing(query))


def _start(request: ApiRequest, query: EventsQuery) -> int:
    given = request.header(b"last-event-id")
    if given is None:
        return query.from_ or 0
    if not (given.isascii() and given.isdigit() and len(given) <= 19 and int(given) <= MAX_POSITION):
        raise InvalidRequest("Last-Event-ID: it must be the id of an event of this session", field="Last-Event-ID")
    return int(given)


def _framing(query: EventsQuery) -> Framing:
    only = STREAMS[query.stream] if query.stream is not None else None
    match query.encoding:
        case "base64":
            return Base64Frames(only)
        case "utf-8":
            return TextFrames(only)
        case "raw":
            return PlainBytes(only)


async def _require_boundary(services: Services, session_id: str, start: int) -> None:
    """Find out that a record ends at `start` while the answer can still be a 400."""
    async with aclosing(services.commands.read(session_id, start=start, follow=False)) as records:  # type: ignore[type-var]
        async for _ in records:
            return


class _Events(Response):
    """The stream, as an answer."""

    def __init__(self, services: Services, token: SessionToken, start: int, framing: Framing) -> None:
        self.status_code = 200
        self.media_type = framing.media_type
        self.background = None
        self.init_headers(HEADERS)
        self._services = services
        self._token = token
        self._start = start
        self._framing = framing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        commands = self._services.commands
        records = commands.read(self._token.session_id, start=self._start)
        follower = Follower(records, self._framing, lambda: commands.session_token_is_revoked(self._token))
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": b"", "more_body": True})  # the headers leave at once
        await follower.run(receive, send)
        await send({"type": "http.response.body", "body": b""})

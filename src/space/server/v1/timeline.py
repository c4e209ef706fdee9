"""A sandbox's timeline and its measurements."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from space.core.account import Principal, Scope
from space.core.errors import FailedPrecondition, GuestUnreachable, InvalidRequest
from space.core.event import Event
from space.core.lifecycle import require_running
from space.server import sse
from space.server.answers import Json, Stream
from space.server.documentation import Answer, Document, header_parameter
from space.server.endpoint import Routes, Rule
from space.server.errors import NotAcceptable
from space.server.request import ApiRequest
from space.server.services import Services
from space.server.v1 import examples, render
from space.server.v1.schemas.sandboxes import EventQuery, Metrics, SandboxEventPage
from space.server.v1.schemas.shared import AT, SANDBOX, SandboxIdPath

routes = Routes("sandboxes")

BATCH = 500
LAST_EVENT_ID = header_parameter(
    "Last-Event-ID", "The `id:` of the last event that was seen.", "2", pattern=r"^\d{1,18}$"
)


@routes.add(
    "GET",
    "/v1/sandboxes/{sandbox_id}/events",
    rule=Rule(right=Scope.SANDBOXES_READ, is_stream=True),
    document=Document(
        id="listSandboxEvents",
        summary="Read a sandbox's timeline",
        tag=routes.tag,
        description=(
            "States, operations and exits, oldest first, with reasons. With `Accept: text/event-stream` it goes on "
            "live until the client leaves; else it is a page, whose `next_cursor` also asks for later events."
        ),
        parameters=(LAST_EVENT_ID,),
        answers={
            200: Answer(
                description="A page of events, or a stream of them.",
                model=SandboxEventPage,
                also={sse.MEDIA_TYPE: sse.frame("sandbox.started", examples.EVENT, id="2").decode()},
                examples={"page": examples.page(examples.EVENT, cursor="2"), "none": examples.page()},
            )
        },
        raises=(NotAcceptable("this answers application/json or text/event-stream", field="Accept"),),
    ),
)
async def list_sandbox_events(
    request: ApiRequest, sandbox_id: SandboxIdPath, query: Annotated[EventQuery, Query()]
) -> Response:
    """Answer a page of the timeline, or follow it."""
    after = _position(request, query)
    sandboxes = request.services.sandboxes
    if _wants_stream(request.header(b"accept")):
        await sandboxes.events(request.principal, sandbox_id, after=after, limit=1)  # 404 before the stream begins
        frames = _follow(request.services, request.principal, sandbox_id, after)
        return Stream(frames, media_type=sse.MEDIA_TYPE, headers=sse.HEADERS)
    events = await sandboxes.events(request.principal, sandbox_id, after=after, limit=query.limit)
    cursor = str(events[-1].seq) if len(events) == query.limit else None
    return Json({"items": [render.event(row) for row in events], "next_cursor": cursor})


def _position(request: ApiRequest, query: EventQuery) -> int:
    header = request.header(b"last-event-id")
    known = _number(header, "Last-Event-ID") if header is not None else query.after or 0
    return _number(query.cursor, "cursor") if query.cursor is not None else known


def _number(given: str, field: str) -> int:
    if not given.isascii() or not given.isdigit() or len(given) > 18:
        raise InvalidRequest(f"{field}: it must be one that this timeline gave out", field=field)
    return int(given)


def _wants_stream(accept: str | None) -> bool:
    if accept is None:
        return False
    kinds = [kind.partition(";")[0].strip().lower() for kind in accept.split(",")]
    if sse.MEDIA_TYPE in kinds:
        return True
    if not any(kind in ("*/*", "application/*", "application/json", "") for kind in kinds):
        raise NotAcceptable("this answers application/json or text/event-stream", field="Accept")
    return False


async def _follow(services: Services, who: Principal, sandbox_id: str, after: int) -> AsyncIterator[bytes]:
    while True:
        events = await services.sandboxes.events(who, sandbox_id, after=after, limit=BATCH)
        if events:
            yield b"".join(_frame(event) for event in events)
            after = events[-1].seq
            continue
        await services.sandboxes.wait_event(sandbox_id, after=after, seconds=sse.KEEP_ALIVE_SECONDS)
        if await services.tokens.is_revoked(who.token_id):
            return
        yield sse.KEEP_ALIVE


def _frame(event: Event) -> bytes:
    return sse.frame(event.type, render.event(event), id=str(event.seq))


@routes.add(
    "GET",
    "/v1/sandboxes/{sandbox_id}/metrics",
    rule=Rule(right=Scope.SANDBOXES_READ),
    document=Document(
        id="getSandboxMetrics",
        summary="Measure a sandbox",
        tag=routes.tag,
        description="What its machine uses now. Asking does not count as activity.",
        answers={
            200: Answer(
                description="Its use of the host.",
                model=Metrics,
                examples={
                    "now": {
                        "sandbox_id": SANDBOX,
                        "generation": 1,
                        "at": AT,
                        "now": {"cpu_seconds": 1.25, "memory_bytes": 41_943_040, "pids": 4},
                        "history": [],
                    }
                },
            )
        },
        raises=(
            FailedPrecondition("the sandbox is suspended; it must be running", current_state="suspended"),
            GuestUnreachable("the node does not answer; try again"),
        ),
    ),
)
async def get_sandbox_metrics(request: ApiRequest, sandbox_id: SandboxIdPath) -> Response:
    """Show what a machine uses."""
    services = request.services
    row = await services.sandboxes.get(request.principal, sandbox_id)
    require_running(row.state, held_by=(row.held_by, row.held_kind) if row.held_by and row.held_kind else None)
    usage = await services.metrics(row)
    return Json(
        {
            "sandbox_id": row.id,
            "generation": row.generation,
            "at": services.clock.now(),
            "now": {name: float(value) for name, value in usage.items()},
            "history": [],
        }
    )

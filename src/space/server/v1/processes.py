"""Processes: list, get, kill, signal, stdin, resize."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from space.control.idempotency import Linked
from space.core.account import Scope
from space.core.errors import FailedPrecondition, GuestUnreachable, NotFound
from space.server.answers import Json
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1 import examples, render
from space.server.v1.schemas.commands import Process, ProcessPage, ProcessQuery, Pty, Signal
from space.server.v1.schemas.shared import ProcessIdPath, SandboxIdPath

routes = Routes("processes")

NO_PROCESS = NotFound("there is no such process")
SILENT = GuestUnreachable("the sandbox does not answer; try again")
SHOWN = {"killed": examples.PROCESS_KILLED, "had_ended": examples.PROCESS_EXITED}
STDIN_CLOSED = FailedPrecondition("the process has no open stdin; create the command with `stdin: pipe`")


async def _replay(request: ApiRequest, linked: Linked, arguments: Mapping[str, Any]) -> Response:
    process = await request.services.commands.get(request.principal, arguments["sandbox_id"], arguments["process_id"])
    return Json(render.process(process))


@routes.add(
    "GET",
    "/v1/sandboxes/{sandbox_id}/processes",
    rule=Rule(right=Scope.SANDBOXES_READ),
    document=Document(
        id="listProcesses",
        summary="List a sandbox's processes",
        tag=routes.tag,
        is_published=True,
        description="Ended ones stay listed for 24 hours.",
        answers={
            200: Answer(
                description="A page of processes, oldest first.",
                model=ProcessPage,
                examples={
                    "two": examples.page(examples.PROCESS_RUNNING, examples.PROCESS_EXITED),
                    "none": examples.page(),
                },
            )
        },
    ),
)
async def list_processes(
    request: ApiRequest, sandbox_id: SandboxIdPath, query: Annotated[ProcessQuery, Query()]
) -> Response:
    """List processes."""
    page = await request.services.commands.list(request.principal, sandbox_id, limit=query.limit, cursor=query.cursor)
    return Json({"items": [render.process(row) for row in page.items], "next_cursor": page.next_cursor})


@routes.add(
    "GET",
    "/v1/sandboxes/{sandbox_id}/processes/{process_id}",
    rule=Rule(right=Scope.SANDBOXES_READ),
    document=Document(
        id="getProcess",
        summary="Get a process",
        tag=routes.tag,
        is_published=True,
        answers={
            200: Answer(
                description="The process.",
                model=Process,
                examples={
                    "created": examples.PROCESS_CREATED,
                    "running": examples.PROCESS_RUNNING,
                    "exited": examples.PROCESS_EXITED,
                    "killed": examples.PROCESS_KILLED,
                },
            )
        },
        raises=(NO_PROCESS,),
    ),
)
async def get_process(request: ApiRequest, sandbox_id: SandboxIdPath, process_id: ProcessIdPath) -> Response:
    """Show one process."""
    return Json(render.process(await request.services.commands.get(request.principal, sandbox_id, process_id)))


@routes.add(
    "POST",
    "/v1/sandboxes/{sandbox_id}/processes/{process_id}/kill",
    rule=Rule(right=Scope.COMMANDS_RUN, replay=_replay),
    document=Document(
        id="killProcess",
        summary="Kill a process",
        tag=routes.tag,
        is_published=True,
        description="Ends its whole group with SIGKILL. Killing what has ended succeeds.",
        answers={200: Answer(description="The process.", model=Process, examples=SHOWN)},
        raises=(NO_PROCESS, SILENT),
    ),
)
async def kill_process(request: ApiRequest, sandbox_id: SandboxIdPath, process_id: ProcessIdPath) -> Response:
    """Kill a process."""
    return Json(render.process(await request.services.commands.kill(request.call, sandbox_id, process_id)))


@routes.add(
    "POST",
    "/v1/sandboxes/{sandbox_id}/processes/{process_id}/signal",
    rule=Rule(right=Scope.COMMANDS_RUN, replay=_replay),
    document=Document(
        id="signalProcess",
        summary="Send a signal to a process",
        tag=routes.tag,
        is_published=True,
        description="To its whole group. Signalling what has ended succeeds.",
        requests={"terminate": {"signal": "SIGTERM"}, "interrupt": {"signal": "SIGINT"}},
        answers={
            200: Answer(description="The process.", model=Process, examples={"running": examples.PROCESS_RUNNING})
        },
        raises=(NO_PROCESS, SILENT, FailedPrecondition("the process has not been started", current_state="created")),
    ),
)
async def signal_process(
    request: ApiRequest, sandbox_id: SandboxIdPath, process_id: ProcessIdPath, body: Signal
) -> Response:
    """Send a signal."""
    process = await request.services.commands.signal(request.call, sandbox_id, process_id, body.signal)
    return Json(render.process(process))


@routes.add(
    "POST",
    "/v1/sandboxes/{sandbox_id}/processes/{process_id}/resize",
    rule=Rule(right=Scope.COMMANDS_RUN),
    document=Document(
        id="resizeProcess",
        summary="Resize a process's terminal",
        tag=routes.tag,
        requests={"wide": {"cols": 200, "rows": 50}},
        answers={204: Answer(description="Done.")},
        raises=(NO_PROCESS, SILENT, FailedPrecondition("the process has no terminal")),
    ),
)
async def resize_process(
    request: ApiRequest, sandbox_id: SandboxIdPath, process_id: ProcessIdPath, body: Pty
) -> Response:
    """Tell a terminal its size."""
    await request.services.commands.resize(request.call, sandbox_id, process_id, body.to_core())
    return Response(status_code=204)


@routes.add(
    "PUT",
    "/v1/sandboxes/{sandbox_id}/processes/{process_id}/stdin",
    rule=Rule(right=Scope.COMMANDS_RUN),
    document=Document(
        id="writeStdin",
        summary="Write to a process's stdin",
        tag=routes.tag,
        description="Piece by piece, no faster than the process reads. It stays open for more.",
        media_type="application/octet-stream",
        answers={204: Answer(description="All of it was written.")},
        raises=(NO_PROCESS, SILENT, STDIN_CLOSED),
    ),
)
async def write_stdin(request: ApiRequest, sandbox_id: SandboxIdPath, process_id: ProcessIdPath) -> Response:
    """Pass the body on as it comes."""
    commands = request.services.commands
    is_empty = True
    async for piece in request.stream():
        if piece:
            is_empty = False
            await commands.write_stdin(request.call, sandbox_id, process_id, piece)
    if is_empty:  # nothing to write, but what cannot be written to is an error still
        await commands.write_stdin(request.call, sandbox_id, process_id, b"")
    return Response(status_code=204)


@routes.add(
    "DELETE",
    "/v1/sandboxes/{sandbox_id}/processes/{process_id}/stdin",
    rule=Rule(right=Scope.COMMANDS_RUN),
    document=Document(
        id="closeStdin",
        summary="Close a process's stdin",
        tag=routes.tag,
        description="The process reads the end of its input. Closing what is closed succeeds.",
        answers={204: Answer(description="Done.")},
        raises=(NO_PROCESS, SILENT),
    ),
)
async def close_stdin(request: ApiRequest, sandbox_id: SandboxIdPath, process_id: ProcessIdPath) -> Response:
    """End a process's input."""
    await request.services.commands.close_stdin(request.call, sandbox_id, process_id)
    return Response(status_code=204)

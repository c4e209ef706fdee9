"""Commands: a session that streams, and the one process in it; or one call that answers with the output."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from space.control.exec_result import ExecResult
from space.control.idempotency import Linked
from space.control.secret import SessionSecret
from space.core.account import Scope
from space.core.command import Process
from space.core.errors import Conflict, FailedPrecondition, GuestUnreachable, NotFound
from space.server.answers import Json, wait_gone
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1 import examples, render
from space.server.v1.schemas import commands as forms
from space.server.v1.schemas.shared import SandboxIdPath, SessionIdPath

routes = Routes("commands")
T = TypeVar("T")

NOT_RUNNING = FailedPrecondition("the sandbox is suspended; it must be running", current_state="suspended")
SILENT = GuestUnreachable("the sandbox does not answer; try again")
PYTHON = {"argv": ["python3", "-c", "print(6*7)"]}


def _session(request: ApiRequest, session_id: str, secret: SessionSecret) -> dict[str, Any]:
    return {
        "id": session_id,
        "events_url": f"{request.services.data_plane_url()}/v1/sessions/{session_id}/events",
        "token": secret.secret,
        "token_expires_at": secret.expires_at,
    }


def _created(request: ApiRequest, process: Process, secret: SessionSecret) -> Response:
    content = {"session": _session(request, process.session_id, secret), "process": render.process(process)}
    location = f"/v1/sandboxes/{process.sandbox_id}/processes/{process.id}"
    return Json(content, 201, {"Location": location, "Cache-Control": "no-store"})


async def _replay_create(request: ApiRequest, linked: Linked, arguments: Mapping[str, Any]) -> Response:
    process, secret = await request.services.commands.replay_create(
        request.call, arguments["sandbox_id"], linked.target_id
    )
    return _created(request, process, secret)


@routes.add(
    "POST",
    "/v1/sandboxes/{sandbox_id}/commands",
    rule=Rule(right=Scope.COMMANDS_RUN, keeps_body=False, replay=_replay_create),
    document=Document(
        id="createCommand",
        summary="Create a command",
        tag=routes.tag,
        is_published=True,
        description="Attaching to `session.events_url` starts it, or with `start: now` it runs without any reader.",
        requests={
            "python": PYTHON,
            "shell": {"shell": "echo $HOME", "start": "now"},
            "terminal": {"argv": ["bash", "-l"], "stdin": "pipe", "pty": {"cols": 120, "rows": 40}},
            "bounded": {"argv": ["make", "test"], "cwd": "/home/user/app", "timeout_seconds": 600},
        },
        answers={
            201: Answer(
                description="The session and its process.",
                model=forms.CommandCreated,
                headers={"Location": "Path of the process."},
                examples={
                    "created": {"session": examples.SESSION_CREATED, "process": examples.PROCESS_CREATED},
                    "started": {"session": examples.SESSION_CREATED, "process": examples.PROCESS_RUNNING},
                },
            )
        },
        raises=(NOT_RUNNING, SILENT),
    ),
)
async def create_command(request: ApiRequest, sandbox_id: SandboxIdPath, body: forms.Command) -> Response:
    """Record a command; perhaps start it."""
    process, secret = await request.services.commands.create(request.call, sandbox_id, body.to_core())
    return _created(request, process, secret)


async def _replay_exec(request: ApiRequest, linked: Linked, arguments: Mapping[str, Any]) -> Response:
    body: forms.Exec = arguments["body"]
    result = await request.services.commands.result(
        request.principal, arguments["sandbox_id"], linked.target_id, max_output_bytes=body.max_output_bytes
    )
    return Json(exec_result(result, body.encoding))


@routes.add(
    "POST",
    "/v1/sandboxes/{sandbox_id}/exec",
    rule=Rule(right=Scope.COMMANDS_RUN, replay=_replay_exec, is_rebuilt=True),
    document=Document(
        id="exec",
        summary="Run a program and answer with its output",
        tag=routes.tag,
        description=(
            "Ends with the program. A caller that goes away kills it, unless its idempotency key lets it come back."
        ),
        requests={
            "python": PYTHON,
            "bounded": {"shell": "seq 1 1000000", "timeout_seconds": 5, "max_output_bytes": 4096},
            "binary": {"argv": ["cat", "/bin/true"], "encoding": "base64"},
        },
        answers={
            200: Answer(
                description="How it ended and what it wrote.",
                model=forms.ExecResult,
                examples={
                    "succeeded": examples.EXEC_RESULT,
                    "exit_code": examples.EXEC_FAILED,
                    "timed_out": examples.EXEC_TIMED_OUT,
                },
            )
        },
        raises=(NOT_RUNNING, SILENT),
    ),
)
async def run_program(request: ApiRequest, sandbox_id: SandboxIdPath, body: forms.Exec) -> Response:
    """Run a program to its end."""
    running = request.services.commands.exec(
        request.call, sandbox_id, body.to_core(start_now=True), max_output_bytes=body.max_output_bytes
    )
    return Json(exec_result(await while_connected(request, running), body.encoding))


async def while_connected(request: ApiRequest, work: Awaitable[T]) -> T:
    """Await `work`; cancel it when the client goes away, unless it can come back with its idempotency key."""
    if request.call.idempotency is not None:
        return await work
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(wait_gone(request.receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.wait({working, gone})


def exec_result(result: ExecResult, encoding: str) -> dict[str, Any]:
    """Show how a program ended and what it wrote."""
    return {
        "exit_code": result.exit_code,
        "signal": result.signal,
        "reason": result.reason,
        "stdout": render.output(result.stdout, encoding),
        "stderr": render.output(result.stderr, encoding),
        "encoding": encoding,
        "stdout_truncated": result.stdout_truncated,
        "stderr_truncated": result.stderr_truncated,
        "stdout_bytes": result.stdout_bytes,
        "stderr_bytes": result.stderr_bytes,
        "session_id": result.session_id,
        "process_id": result.process_id,
        "duration_ms": result.duration_ms,
    }


async def _replay_token(request: ApiRequest, linked: Linked, arguments: Mapping[str, Any]) -> Response:
    return await _renewed(request, arguments["sandbox_id"], arguments["session_id"])


@routes.add(
    "POST",
    "/v1/sandboxes/{sandbox_id}/sessions/{session_id}/token",
    rule=Rule(right=Scope.COMMANDS_RUN, keeps_body=False, replay=_replay_token),
    document=Document(
        id="renewSessionToken",
        summary="Make another token for a session",
        tag=routes.tag,
        description="Older ones live to their own expiry.",
        answers={
            201: Answer(
                description="The session with a fresh token.",
                model=forms.Session,
                examples={"renewed": examples.SESSION_CREATED},
            )
        },
        raises=(NotFound("there is no such session"), Conflict("the sandbox is deleted")),
    ),
)
async def renew_session_token(request: ApiRequest, sandbox_id: SandboxIdPath, session_id: SessionIdPath) -> Response:
    """Mint another right to read a session."""
    return await _renewed(request, sandbox_id, session_id)


async def _renewed(request: ApiRequest, sandbox_id: str, session_id: str) -> Response:
    secret = await request.services.commands.renew_token(request.call, sandbox_id, session_id)
    return Json(_session(request, session_id, secret), 201, {"Cache-Control": "no-store"})

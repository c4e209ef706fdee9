"""`/v1/run`: a sandbox, one command, its output, and nothing left behind."""

import base64
from typing import Any

from starlette.responses import Response

from space.control.run import FileIn, FileOut, RunRequest
from space.core.account import Scope
from space.core.errors import CapacityUnavailable, LimitExceeded, NotFound
from space.server.answers import Json
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1 import examples
from space.server.v1.commands import PYTHON, exec_result, while_connected
from space.server.v1.sandboxes import UNSUPPORTED_POLICY, require_supported
from space.server.v1.schemas import run as forms
from space.server.v1.schemas.shared import SANDBOX

routes = Routes("commands")

RESULT = examples.EXEC_RESULT | {"sandbox_id": SANDBOX, "files": []}


@routes.add(
    "POST",
    "/v1/run",
    rule=Rule(right=Scope.COMMANDS_RUN),
    document=Document(
        id="run",
        summary="Run a program in a sandbox of its own",
        tag=routes.tag,
        description="Creates the sandbox, writes `files_in`, runs the command, reads `files_out`, deletes the sandbox.",
        requests={
            "smallest": {"sandbox": {"template": "base"}, "command": PYTHON},
            "with_files": {
                "sandbox": {"template": "base"},
                "command": {"shell": "sort < /tmp/in > /tmp/out", "timeout_seconds": 10},
                "files_in": [{"path": "/tmp/in", "content": "b\na\n"}],  # noqa: S108 - in the guest
                "files_out": ["/tmp/out"],  # noqa: S108
            },
        },
        answers={
            200: Answer(
                description="How it ended, what it wrote and left.",
                model=forms.RunResult,
                examples={
                    "printed": RESULT,
                    "left_a_file": RESULT
                    | {"files": [{"path": "/tmp/out", "content": "YQpiCg==", "size": 4, "error": None}]},  # noqa: S108
                    "timed_out": RESULT | {"exit_code": None, "signal": "SIGKILL", "reason": "timeout"},
                },
            )
        },
        raises=(
            NotFound("there is no template nosuch; GET /v1/templates lists them", template="nosuch"),
            UNSUPPORTED_POLICY,
            LimitExceeded("the project may hold 50 sandboxes; delete one first", quota="sandboxes", limit=50),
            CapacityUnavailable("no node has 512 MiB of memory free", memory_mib=512),
        ),
    ),
)
async def run(request: ApiRequest, body: forms.Run) -> Response:
    """Run from nothing to output."""
    request.principal.require(Scope.SANDBOXES_WRITE)
    require_supported(body.sandbox)
    wanted = RunRequest(
        sandbox=body.sandbox.to_core(),
        command=body.command.to_core(start_now=False),
        files_in=[FileIn(path=file.path, data=file.data, mode=_mode(file)) for file in body.files_in],
        files_out=body.files_out,
        max_output_bytes=body.command.max_output_bytes,
    )
    result = await while_connected(request, request.services.runs.run(request.call, wanted))
    content = exec_result(result.result, body.command.encoding)
    return Json(content | {"sandbox_id": result.sandbox_id, "files": [_file(file) for file in result.files]})


def _mode(file: forms.FileIn) -> int | None:
    return int(file.mode, 8) if file.mode is not None else None


def _file(file: FileOut) -> dict[str, Any]:
    error = None
    if file.error is not None:
        error = {"code": file.error.code, "message": file.error.message, "details": dict(file.error.details)}
    data = file.data
    return {
        "path": file.path,
        "content": base64.b64encode(data).decode("ascii") if data is not None else None,
        "size": len(data) if data is not None else None,
        "error": error,
    }

"""A small real HTTP server that speaks the contract from a script, and breaks on request.

It is not a fake of our code: it is the other end of the wire, for faults that the real server never shows on purpose,
such as a connection cut in the middle of a frame.
"""

import asyncio
import base64
import json
import random
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

TOKEN = "api-token"
SANDBOX = "sbx" + "0" * 26
SESSION = "ses" + "0" * 26
PROCESS = "prc" + "0" * 26
OPERATION = "ops" + "0" * 26
SNAPSHOT = "snp" + "0" * 26
GOALS = {"pause": "paused", "suspend": "suspended", "wake": "running", "recover": "running"}


class Cut(Exception):
    """Breaks the connection: the server's socket closes in the middle of the answer."""


def frame(event: str, data: dict[str, Any], position: int | None) -> bytes:
    head = f"event: {event}\n" if position is None else f"id: {position}\nevent: {event}\n"
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def journal(outputs: list[tuple[str, bytes]], exit_code: int | None = 0, **exited: Any) -> list[tuple[int, bytes]]:
    """Return the frames of a whole command with the position after each."""
    position, offsets = 10, {"stdout": 0, "stderr": 0, "pty": 0}
    frames = [(position, frame("process_started", {"process_id": PROCESS, "os_pid": 7, "at": None}, position))]
    for stream, data in outputs:
        position += 13 + len(data)
        body = {"data": base64.b64encode(data).decode(), "offset": offsets[stream]}
        offsets[stream] += len(data)
        frames.append((position, frame(stream, body, position)))
    position += 50
    body = {"exit_code": exit_code, "signal": None, "reason": None, "at": "2026-01-01T00:00:00Z"} | exited
    body |= {"stdout_bytes": offsets["stdout"], "stderr_bytes": offsets["stderr"]}
    frames.append((position, frame("process_exited", body, position)))
    return frames


@dataclass
class Script:
    """What the server says, and how it fails."""

    frames: list[tuple[int, bytes]] = field(default_factory=list)
    cut_after: Callable[[], int | None] = lambda: None  #: bytes after which an event stream breaks; None: never
    failures: list[Response | type[Cut]] = field(default_factory=list)  #: answers to the next /v1 requests
    tokens: set[str] = field(default_factory=lambda: {"session-0"})
    renewals: int = 0
    operation_polls: int = 0  #: how often an operation is still running
    operation_error: dict[str, Any] | None = None
    attached: int = 0  #: how often a reader came
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    keep_open: bool = False  #: an event stream stays open, with comments, where the frames end
    last_event_ids: list[str | None] = field(default_factory=list)
    state: str = "running"  #: of the sandbox
    operation: str = "create"  #: the kind of the operation that is under way, or was last
    children: list[dict[str, Any]] = field(default_factory=list)  #: what a fork answers


class ScriptedServer:
    """Serves a script on a free port; can be stopped and started again on the same one."""

    def __init__(self, script: Script) -> None:
        self.script = script
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        config = uvicorn.Config(
            self._app(), host="127.0.0.1", port=self.port, log_level="critical", lifespan="off", ws="none"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the scripted server did not start")
            threading.Event().wait(0.005)

    def stop(self) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _app(self) -> Starlette:
        base = "/v1/sandboxes/{sandbox_id}"
        return Starlette(
            routes=[
                Route("/v1/sandboxes", self._create, methods=["POST"]),
                Route("/v1/sandboxes", self._list, methods=["GET"]),
                Route(base, self._get, methods=["GET"]),
                Route(base, self._delete, methods=["DELETE"]),
                Route("/v1/operations/{operation_id}", self._operation, methods=["GET"]),
                Route(base + "/fork", self._fork, methods=["POST"]),
                Route(base + "/snapshots", self._snapshot, methods=["POST"]),
                Route(base + "/extend", self._extend, methods=["POST"]),
                *(Route(f"{base}/{kind}", self._change, methods=["POST"]) for kind in GOALS),
                Route("/v1/snapshots", self._snapshots, methods=["GET"]),
                Route("/v1/snapshots/{snapshot_id}", self._one_snapshot, methods=["GET", "DELETE"]),
                Route(base + "/commands", self._command, methods=["POST"]),
                Route(base + "/exec", self._exec, methods=["POST"]),
                Route(base + "/files", self._file, methods=["GET", "PUT"]),
                Route(base + "/sessions/{session_id}/token", self._renew, methods=["POST"]),
                Route(base + "/processes", self._pages, methods=["GET"]),
                Route(base + "/events", self._pages, methods=["GET"]),
                Route(base + "/processes/{process_id}/{what}", self._process, methods=["POST", "PUT", "DELETE"]),
                Route("/v1/sessions/{session_id}/events", self._events, methods=["GET"]),
            ]
        )

    async def _record(self, request: Request) -> Response | None:
        """Note the request; answer it here if the script says that it fails."""
        body = await request.body()
        self.script.requests.append((request.method, request.url.path, dict(request.headers), body))
        if self.script.failures:
            failure = self.script.failures.pop(0)
            return failure if isinstance(failure, Response) else StreamingResponse(_broken())
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return error("unauthorized", 401)
        return None

    async def _create(self, request: Request) -> Response:
        if failed := await self._record(request):
            return failed
        is_running = not self.script.operation_polls and self.script.operation_error is None
        body = {"sandbox": sandbox("running" if is_running else "creating"), "operation": self._operation_body()}
        return JSONResponse(body, 201 if is_running else 202)

    async def _list(self, request: Request) -> Response:
        if failed := await self._record(request):
            return failed
        cursor = int(request.query_params.get("cursor", "0"))
        items = [sandbox("running", number) for number in range(cursor, min(cursor + 2, 5))]
        return JSONResponse({"items": items, "next_cursor": str(cursor + 2) if cursor + 2 < 5 else None})

    async def _pages(self, request: Request) -> Response:
        """Answer five things, two a page at most: enough of a process and of an event at once."""
        if failed := await self._record(request):
            return failed
        start, limit = int(request.query_params.get("cursor", "0")), int(request.query_params["limit"])
        end = min(start + min(limit, 2), 5)
        items = [
            {"id": f"{PROCESS[:-1]}{number}", "session_id": SESSION, "argv": [], "state": "exited",
             "seq": number, "type": "test", "data": {}, "at": None}
            for number in range(start, end)
        ]  # fmt: skip
        return JSONResponse({"items": items, "next_cursor": str(end) if end < 5 else None})

    async def _get(self, request: Request) -> Response:
        if failed := await self._record(request):
            return failed
        return JSONResponse(sandbox(self.script.state))

    async def _change(self, request: Request) -> Response:
        if failed := await self._record(request):
            return failed
        self.script.operation = request.url.path.rpartition("/")[2]
        body = self._operation_body()
        return JSONResponse(body, 200 if body["status"] == "succeeded" else 202)

    async def _extend(self, request: Request) -> Response:
        if failed := await self._record(request):
            return failed
        return JSONResponse(sandbox(self.script.state) | {"expires_at": "2026-01-01T02:00:00Z"})

    async def _fork(self, request: Request) -> Response:
        if failed := await self._record(request):
            return failed
        self.script.operation = "fork"
        return JSONResponse({"operation": self._operation_body(), "children": self.script.children}, 202)

    async def _snapshot(self, request: Request) -> Response:
        if failed := await self._record(request):
            return failed
        self.script.operation = "snapshot"
        state = "uploading" if self.script.operation_polls > 0 or self.script.operation_error else "ready"
        return JSONResponse({"snapshot": snapshot(state), "operation": self._operation_body()}, 202)

    async def _snapshots(self, request: Request) -> Response:
        if failed := await self._record(request):
            return failed
        cursor = int(request.query_params.get("cursor", "0"))
        items = [snapshot("ready", number) for number in range(cursor, min(cursor + 2, 5))]
        return JSONResponse({"items": items, "next_cursor": str(cursor + 2) if cursor + 2 < 5 else None})

    async def _one_snapshot(self, request: Request) -> Response:
        if failed := await self._record(request):
            return failed
        return Response(status_code=204) if request.method == "DELETE" else JSONResponse(snapshot("ready"))

    async def _delete(self, request: Request) -> Response:
        if failed := await self._record(request):
            return failed
        return JSONResponse(self._operation_body(), 202)

    def _operation_body(self) -> dict[str, Any]:
        status = (
            "running" if self.script.operation_polls > 0 else "failed" if self.script.operation_error else "succeeded"
        )
        error = self.script.operation_error if status == "failed" else None
        if status == "succeeded":
            self.script.state = GOALS.get(self.script.operation, self.script.state)
        progress = {"step_count": 3, "steps_done": 1, "bytes_read": 3 << 20, "bytes_new": None, "bytes_uploaded": None}
        return {
            "id": OPERATION, "kind": self.script.operation, "sandbox_id": SANDBOX, "status": status, "error": error,
            "step": "upload_snapshot" if status == "running" else None, "progress": progress,
        }  # fmt: skip

    async def _operation(self, request: Request) -> Response:
        if failed := await self._record(request):
            return failed
        self.script.operation_polls -= 1
        return JSONResponse(self._operation_body())

    async def _command(self, request: Request) -> Response:
        if failed := await self._record(request):
            return failed
        session = {
            "id": SESSION,
            "events_url": f"{self.url}/v1/sessions/{SESSION}/events",
            "token": "session-0",
            "token_expires_at": "2026-01-01T00:00:00Z",
        }
        return JSONResponse({"session": session, "process": {"id": PROCESS, "state": "created"}}, 201)

    async def _exec(self, request: Request) -> Response:
        if failed := await self._record(request):
            return failed
        body = {"exit_code": 3, "signal": None, "reason": None, "encoding": "base64", "session_id": SESSION}
        body |= {"stdout": base64.b64encode(b"\xffout").decode(), "stderr": "", "duration_ms": 5}
        return JSONResponse(body | {"stdout_truncated": False, "stderr_truncated": True})

    async def _file(self, request: Request) -> Response:
        if failed := await self._record(request):
            return failed
        path = request.query_params["path"]
        if request.method == "PUT":
            self.script.files[path] = await request.body()
            return JSONResponse({"path": path, "type": "file", "size": len(self.script.files[path]), "mode": "0644"})
        if path not in self.script.files:
            return error("not_found", 404)
        return Response(self.script.files[path], media_type="application/octet-stream")

    async def _renew(self, request: Request) -> Response:
        if failed := await self._record(request):
            return failed
        self.script.renewals += 1
        token = f"session-{self.script.renewals}"
        self.script.tokens.add(token)
        return JSONResponse({"id": SESSION, "token": token, "token_expires_at": "2026-01-01T00:00:00Z"}, 201)

    async def _process(self, request: Request) -> Response:
        if failed := await self._record(request):
            return failed
        return Response(status_code=204)

    async def _events(self, request: Request) -> Response:
        self.script.attached += 1
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.script.tokens:
            return error("unauthorized", 401)
        last = request.headers.get("last-event-id") or request.query_params.get("from")
        self.script.last_event_ids.append(last)
        start = int(last or 0)
        if start and start not in {position for position, _ in self.script.frames}:
            return error("invalid_request", 400)
        text = b"".join(body for position, body in self.script.frames if position > start)
        return StreamingResponse(self._stream(text), media_type="text/event-stream")

    async def _stream(self, text: bytes) -> AsyncIterator[bytes]:
        limit = self.script.cut_after()
        cut = limit is not None and limit < len(text)
        text = text[:limit]
        step = random.randint(1, max(1, len(text)))
        for start in range(0, len(text), step):
            yield text[start : start + step]
            await asyncio.sleep(0)
        if cut:
            raise Cut
        while self.script.keep_open:
            yield b": keep-alive\n\n"
            await asyncio.sleep(0.05)


async def _broken() -> AsyncIterator[bytes]:
    yield b"{"
    raise Cut


def sandbox(state: str, number: int = 0) -> dict[str, Any]:
    return {
        "id": SANDBOX[:-1] + str(number),
        "state": state,
        "template": {"name": "base", "digest": "sha256:0"},
        "runtime": "gvisor",
        "metadata": {"n": str(number)},
        "operation_id": OPERATION if state == "creating" else None,
        "created_at": "2026-01-01T00:00:00.5Z",
        "a_field_of_the_future": 1,
    }


def snapshot(state: str, number: int = 0) -> dict[str, Any]:
    return {
        "id": SNAPSHOT[:-1] + str(number),
        "name": "trained",
        "sandbox_id": SANDBOX,
        "state": state,
        "purpose": "named",
        "template": {"name": "base", "digest": "sha256:0"},
        "bytes_read": 3 << 20,
        "bytes_uploaded": 1 << 20,
        "created_at": "2026-01-01T00:00:00.5Z",
    }


def error(code: str, status: int, *, retryable: bool = False, headers: dict[str, str] | None = None) -> Response:
    body = {"code": code, "message": f"this is {code}", "request_id": "req1", "details": {"field": "x"}}
    return JSONResponse({"error": body | {"retryable": retryable}}, status, headers)


@contextmanager
def serving(script: Script) -> Iterator[ScriptedServer]:
    server = ScriptedServer(script)
    server.start()
    try:
        yield server
    finally:
        server.stop()

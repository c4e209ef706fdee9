"""What describes the server: health, readiness, OpenAPI, and a page for language models."""

import functools
from collections.abc import Callable

from starlette.responses import PlainTextResponse, Response

from space.core.errors import SpaceError, Unavailable
from space.server.answers import Json
from space.server.documentation import Answer, Document
from space.server.endpoint import Endpoint, Routes, Rule
from space.server.openapi import Documents
from space.server.request import ApiRequest
from space.server.schemas import Health, OpenApi

PUBLIC = Rule(is_public=True)

LLMS = """\
# SPACE

> A self-hosted platform on which programs run untrusted code in isolated sandboxes, over HTTP.

Send `Authorization: Bearer TOKEN`. Errors are `{"error": {"code", "message", "request_id", "details", "retryable"}}`.

- One request from nothing to output: `POST /v1/run`
  `{"sandbox": {"template": "base"}, "command": {"argv": ["python3", "-c", "print(6*7)"]}}`
- A sandbox that stays: `POST /v1/sandboxes {"template": "base"}` with `Prefer: wait=30`, then
  `POST /v1/sandboxes/{id}/exec {"shell": "ls -l"}`, `DELETE /v1/sandboxes/{id}`
- Long commands: `POST /v1/sandboxes/{id}/commands`, then read `session.events_url` (server-sent events) with
  `session.token`; reconnect with `Last-Event-ID`, nothing is lost
- Files: `GET|PUT|DELETE /v1/sandboxes/{id}/files?path=/home/user/x`, `GET …/files:list?path=/home/user`
- Retries: send `Idempotency-Key` with every POST; retry when `retryable`, after `Retry-After`
- Nothing leaves a sandbox unless a policy allows it

## Reference

- [OpenAPI 3.1](/openapi.json)
"""


def meta_endpoints(make_documents: Callable[[], Documents]) -> list[Endpoint]:
    """Make the endpoints; the documents are rendered once, when first asked for."""
    documents = functools.cache(make_documents)
    routes = Routes("service")

    @routes.add(
        "GET",
        "/healthz",
        rule=PUBLIC,
        document=Document(
            id="getHealth",
            summary="Whether the process answers",
            tag=routes.tag,
            answers={200: Answer(description="It does.", model=Health, examples={"ok": {"status": "ok"}})},
        ),
    )
    async def health(request: ApiRequest) -> Response:
        """Answer."""
        return Json({"status": "ok"})

    @routes.add(
        "GET",
        "/readyz",
        rule=PUBLIC,
        document=Document(
            id="getReadiness",
            summary="Whether the server can do its work",
            tag=routes.tag,
            answers={200: Answer(description="It can.", model=Health, examples={"ready": {"status": "ready"}})},
            raises=(Unavailable("not ready: store", failing=["store"]),),
        ),
    )
    async def readiness(request: ApiRequest) -> Response:
        """Try each part."""
        failing = []
        for name, check in request.services.checks.items():
            try:
                await check()
            except SpaceError:
                failing.append(name)
        if failing:
            raise Unavailable(f"not ready: {', '.join(failing)}", failing=failing)
        return Json({"status": "ready"})

    for path, id, summary, content in (
        ("/openapi.json", "getOpenApi", "This document", lambda: documents().full),
        (
            "/openapi-m1.json",
            "getOpenApiM1",
            "The part of it that SPACE 0.8.0 published",
            lambda: documents().published,
        ),
    ):
        routes.endpoints.append(_document(path, id, summary, content))

    @routes.add(
        "GET",
        "/llms.txt",
        rule=PUBLIC,
        document=Document(
            id="getLlmsText",
            summary="How to use SPACE, for language models",
            tag=routes.tag,
            answers={200: Answer(description="Markdown.", media_type="text/plain", examples={"page": LLMS})},
        ),
    )
    async def llms(request: ApiRequest) -> Response:
        """Explain."""
        return PlainTextResponse(LLMS)

    return routes.endpoints


def _document(path: str, id: str, summary: str, content: Callable[[], bytes]) -> Endpoint:
    async def show(request: ApiRequest) -> Response:
        return Json(content())

    document = Document(
        id=id, summary=summary, tag="service", answers={200: Answer(description="OpenAPI 3.1.", model=OpenApi)}
    )
    return Endpoint(path, show, method="GET", rule=PUBLIC, document=document)

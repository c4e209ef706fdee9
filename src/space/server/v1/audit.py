"""The audit log: read in pages, or exported as JSON lines."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from space.core.account import Scope
from space.core.event import AuditEntry
from space.core.store import AuditFilter
from space.server.answers import Json, Stream, dumps
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1 import examples, render
from space.server.v1.schemas.operators import AuditPage, AuditQuery
from space.server.v1.schemas.shared import AT, PROJECT, SANDBOX, TOKEN

routes = Routes("audit")

LINES = "application/x-ndjson"
LINES_A_PIECE = 200
CREATED = {
    "seq": 7,
    "project_id": PROJECT,
    "principal": TOKEN,
    "action": "createSandbox",
    "target": SANDBOX,
    "outcome": "ok",
    "request_id": "req-01jd3v8p7n",
    "address": "127.0.0.1",
    "details": {},
    "at": AT,
}
LINE = dumps(CREATED).decode() + "\n"
REFUSED = CREATED | {"seq": 8, "target": None, "outcome": "forbidden", "details": {"scope": "sandboxes:write"}}


@routes.add(
    "GET",
    "/v1/audit",
    rule=Rule(right=Scope.AUDIT_READ, is_stream=True),
    document=Document(
        id="listAuditLog",
        summary="Read the audit log",
        tag=routes.tag,
        description="Every call that changed something, and every one that was refused; newest first.",
        answers={
            200: Answer(
                description="A page, or with `format=jsonl` all that match, a JSON object a line.",
                model=AuditPage,
                also={LINES: LINE},
                examples={"two": examples.page(REFUSED, CREATED, cursor="Nw"), "none": examples.page()},
            )
        },
    ),
)
async def list_audit_log(request: ApiRequest, query: Annotated[AuditQuery, Query()]) -> Response:
    """Show or export the audit log."""
    where = AuditFilter(
        principal=query.principal,
        action=query.action,
        target=query.target,
        outcome=query.outcome,
        project_id=query.project,
        after=query.after,
        before=query.before,
    )
    audit = request.services.audit
    if query.format == "jsonl" or (request.header(b"accept") or "").strip().lower() == LINES:
        return Stream(_lines(audit.export(request.principal, where)), media_type=LINES)
    page = await audit.list(request.principal, where, limit=query.limit, cursor=query.cursor)
    return Json({"items": [render.audit_entry(row) for row in page.items], "next_cursor": page.next_cursor})


async def _lines(entries: AsyncIterator[AuditEntry]) -> AsyncIterator[bytes]:
    lines: list[bytes] = []
    async for entry in entries:
        lines.append(dumps(render.audit_entry(entry)))
        if len(lines) == LINES_A_PIECE:
            yield b"\n".join(lines) + b"\n"
            lines = []
    if lines:
        yield b"\n".join(lines) + b"\n"

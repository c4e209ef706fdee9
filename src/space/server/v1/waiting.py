"""`Prefer: wait=SECONDS`: an answer that comes once the change is made, if that is in time (RFC 7240)."""

import re

from space.core.operation import Operation, Status
from space.server.answers import Json
from space.server.documentation import header_parameter
from space.server.request import ApiRequest
from space.server.v1 import render

MAX_WAIT = 60.0
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6}(?:\.\d{1,3})?)")


def prefer_parameter(meaning: str) -> dict[str, object]:
    """Describe the header for an endpoint that then answers as `meaning` says."""
    return header_parameter("Prefer", f"`wait=SECONDS`, at most 60: {meaning}, if that is in time.", "wait=30")


def preferred_wait(request: ApiRequest) -> float:
    """Return the seconds that the caller would wait; a preference that cannot be read is ignored (RFC 7240 §2)."""
    found = _WAIT.search(request.header(b"prefer") or "")
    return min(float(found[1]), MAX_WAIT) if found else 0.0


def applied(seconds: float) -> dict[str, str]:
    """Return the header that says which wait was applied."""
    return {"Preference-Applied": f"wait={seconds:g}"} if seconds else {}


async def operation_answer(request: ApiRequest, operation: Operation) -> Json:
    """Answer with an operation: 200 if it succeeded while the caller waited for it, else 202."""
    seconds = preferred_wait(request)
    if seconds:
        operation = await request.services.operations.wait(request.principal, operation.id, seconds=seconds)
    is_done = bool(seconds) and operation.status is Status.SUCCEEDED
    headers = {"Location": f"/v1/operations/{operation.id}", **applied(seconds)}
    return Json(render.operation(operation), 200 if is_done else 202, headers)

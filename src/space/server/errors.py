"""What each failure is in HTTP: one table, one envelope.

The core knows no HTTP; this is the only place that gives its errors a status.  Every answer that is not a success
goes through `error_answer`, those of the framework included, so a client needs one parser.
"""

import math
from collections.abc import Mapping
from typing import Any

import orjson

from space.core import errors as core

STATUS: Mapping[type[core.SpaceError], int] = {
    core.SpaceError: 500,
    core.InvalidRequest: 400,
    core.UnsupportedMediaType: 415,
    core.MethodNotAllowed: 405,
    core.Unauthenticated: 401,
    core.PermissionDenied: 403,
    core.NotFound: 404,
    core.Conflict: 409,
    core.AlreadyExists: 409,
    core.OperationInProgress: 409,
    core.StaleVersion: 409,
    core.IdempotencyConflict: 409,
    core.FailedPrecondition: 409,
    core.InvalidTransition: 409,
    core.StaleGeneration: 409,
    core.InUse: 409,
    core.Unsupported: 422,
    core.PayloadTooLarge: 413,
    core.LimitExceeded: 429,
    core.InsufficientStorage: 507,
    core.RuntimeFailed: 500,
    core.CapacityUnavailable: 503,
    core.Unavailable: 503,
    core.GuestUnreachable: 503,
    core.NodeUnreachable: 503,
    core.DeadlineExceeded: 504,
}

RETRY_AFTER: Mapping[int, float] = {429: 1.0, 503: 1.0}
"""Seconds that a client waits when the error itself does not say; 429 and 503 always carry the header."""

INTERNAL_MESSAGE = "an internal error; the server's log has its cause under this request id"


class NotAcceptable(core.InvalidRequest):
    """No form of the answer is one that `Accept` allows."""


class RangeNotSatisfiable(core.InvalidRequest):
    """The range begins beyond the end of what there is; `details.size` says where that is."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the range lies beyond the end: there are {size} bytes", field="Range", size=size)
        self.size = size


def status_of(error: core.SpaceError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, RangeNotSatisfiable):
        return 416
    if isinstance(error, NotAcceptable):
        return 406
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def envelope(error: core.SpaceError, request_id: str) -> bytes:
    """Render the body; the message of an error that is our fault stays in the log."""
    is_ours = status_of(error) == 500
    body = {
        "code": error.code,
        "message": INTERNAL_MESSAGE if is_ours else error.message,
        "request_id": request_id,
        "details": {} if is_ours else dict(error.details),
        "retryable": error.retryable,
    }
    return orjson.dumps({"error": body}, default=str, option=orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS)


def error_headers(error: core.SpaceError) -> list[tuple[bytes, bytes]]:
    """Return the headers that the error's kind asks for, without those of the body."""
    status = status_of(error)
    headers: list[tuple[bytes, bytes]] = []
    seconds = error.retry_after if error.retry_after is not None else RETRY_AFTER.get(status)
    if seconds is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(seconds))).encode()))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, RangeNotSatisfiable):
        headers.append((b"content-range", f"bytes */{error.size}".encode()))
    if isinstance(error, core.MethodNotAllowed):
        headers.append((b"allow", ", ".join(_allowed(error.details)).encode()))
    return headers


def _allowed(details: Mapping[str, Any]) -> list[str]:
    return [str(method) for method in details.get("allowed", ())]

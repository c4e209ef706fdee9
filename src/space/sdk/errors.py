"""Errors by code, as the server's one envelope tells them; and the few that arise before any answer.

Catch `SpaceError` for all; a class for each `code` of the contract, so that callers need not compare strings.
"""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar


class SpaceError(Exception):
    """A call failed.  `retryable` says whether the same call may succeed later."""

    code: ClassVar[str] = "internal"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        request_id: str | None = None,
        details: Mapping[str, Any] | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status  #: HTTP status; None if there was no answer
        self.request_id = request_id  #: finds the call in the server's log
        self.details: Mapping[str, Any] = details or {}
        self.retryable = retryable
        self.retry_after = retry_after  #: seconds that the server asked to wait

    def __str__(self) -> str:
        return f"{self.message} (request {self.request_id})" if self.request_id else self.message


class InvalidRequestError(SpaceError):
    """The request can never be accepted; `details["field"]` names what is wrong."""

    code = "invalid_request"


class UnauthorizedError(SpaceError):
    """No valid token."""

    code = "unauthorized"


class ForbiddenError(SpaceError):
    """The token does not allow this; `details["scope"]` names what is missing."""

    code = "forbidden"


class NotFoundError(SpaceError):
    """It does not exist, or belongs to another project."""

    code = "not_found"


class ConflictError(SpaceError):
    """Something else is under way (`details["operation_id"]`) or the name is taken."""

    code = "conflict"


class IdempotencyConflictError(SpaceError):
    """The idempotency key was used with another body."""

    code = "idempotency_conflict"


class FailedPreconditionError(SpaceError):
    """The thing's state does not allow this; waiting does not help."""

    code = "failed_precondition"


class UnsupportedError(SpaceError):
    """This server or runtime lacks the capability."""

    code = "unsupported"


class PayloadTooLargeError(SpaceError):
    """Over a fixed limit; `details["limit"]` gives it."""

    code = "payload_too_large"


class RateLimitedError(SpaceError):
    """Over a quota or a rate; `details["quota"]` names it."""

    code = "rate_limited"


class InsufficientStorageError(SpaceError):
    """A disk is full: the sandbox's own, or the host's."""

    code = "insufficient_storage"


class CapacityUnavailableError(SpaceError):
    """No node has room at the moment."""

    code = "capacity_unavailable"


class ServiceUnavailableError(SpaceError):
    """A part of SPACE, or the guest, does not answer at the moment."""

    code = "service_unavailable"


class DeadlineExceededError(SpaceError):
    """It took longer than the server, or this client, allowed."""

    code = "deadline_exceeded"


class InternalError(SpaceError):
    """A fault of the server; its log has the cause under `request_id`."""

    code = "internal"


class UnreachableError(SpaceError):
    """No answer: the server is down, restarting, or the URL is wrong."""

    code = "unreachable"

    def __init__(self, message: str, *, was_sent: bool = True, **attributes: Any) -> None:
        super().__init__(message, **attributes)
        self.was_sent = was_sent  #: whether the server may have seen the request


class ProtocolError(SpaceError):
    """The answer was not one of SPACE's: a proxy in between, or another server at this URL."""

    code = "protocol_error"


class SandboxLostError(SpaceError):
    """The machine died while a command ran, so nobody knows how the command ended."""

    code = "sandbox_lost"


class NotConfiguredError(SpaceError):
    """Neither an argument, the environment nor the local `cli.json` says which server or token to use."""

    code = "not_configured"


BY_CODE: Mapping[str, type[SpaceError]] = {
    error.code: error
    for error in (
        InvalidRequestError,
        UnauthorizedError,
        ForbiddenError,
        NotFoundError,
        ConflictError,
        IdempotencyConflictError,
        FailedPreconditionError,
        UnsupportedError,
        PayloadTooLargeError,
        RateLimitedError,
        InsufficientStorageError,
        CapacityUnavailableError,
        ServiceUnavailableError,
        DeadlineExceededError,
        InternalError,
    )
}


def error_from_answer(status: int, headers: Mapping[str, str], body: object, *, now: float | None = None) -> SpaceError:
    """Make the error that an answer of 4xx or 5xx means; `body` is its parsed JSON, or None if it has none."""
    envelope = body.get("error") if isinstance(body, dict) else None
    request_id = headers.get("x-request-id")
    retry_after = _seconds(headers.get("retry-after"), now)
    if not isinstance(envelope, dict) or not isinstance(envelope.get("code"), str):
        return ProtocolError(
            f"the server answered {status} without an error of SPACE; is the URL right, or is a proxy in between?",
            status=status,
            request_id=request_id,
            retryable=status in (429, 502, 503, 504),  # what proxies say while their upstream restarts
            retry_after=retry_after,
        )
    details = envelope.get("details")
    return error_from_envelope(
        envelope,
        status=status,
        request_id=str(envelope.get("request_id") or request_id or "") or None,
        details=details if isinstance(details, dict) else None,
        retryable=envelope.get("retryable") is True,
        retry_after=retry_after,
    )


def error_from_envelope(envelope: Mapping[str, Any], **attributes: Any) -> SpaceError:
    """Make the error of `{"code", "message"}`, as envelopes and failed operations carry it."""
    code = str(envelope.get("code", "internal"))
    return BY_CODE.get(code, InternalError)(str(envelope.get("message") or code), **attributes)


def _seconds(value: str | None, now: float | None) -> float | None:
    """Read `Retry-After`, which is a number of seconds or an HTTP date."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(value).timestamp()
    except ValueError:
        return None
    return max(0.0, moment - now) if now is not None else None

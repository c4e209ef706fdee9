"""Every failure that a caller can see, as one small closed tree.

    SpaceError                          internal
    ├── InvalidRequest                  invalid_request
    │   ├── UnsupportedMediaType        invalid_request
    │   └── MethodNotAllowed            invalid_request
    ├── Unauthenticated                 unauthorized
    ├── PermissionDenied                forbidden
    ├── NotFound                        not_found
    ├── Conflict                        conflict
    │   ├── AlreadyExists               conflict
    │   ├── OperationInProgress         conflict (retryable)
    │   └── StaleVersion                conflict (retryable)
    ├── IdempotencyConflict             idempotency_conflict
    ├── FailedPrecondition              failed_precondition
    │   ├── InvalidTransition           failed_precondition
    │   ├── StaleGeneration             failed_precondition
    │   └── InUse                       failed_precondition
    ├── Unsupported                     unsupported
    ├── PayloadTooLarge                 payload_too_large
    ├── LimitExceeded                   rate_limited (retryable)
    ├── InsufficientStorage             insufficient_storage
    ├── RuntimeFailed                   internal
    ├── CapacityUnavailable             capacity_unavailable (retryable)
    ├── Unavailable                     service_unavailable (retryable)
    │   ├── GuestUnreachable            service_unavailable (retryable)
    │   └── NodeUnreachable             service_unavailable (retryable)
    └── DeadlineExceeded                deadline_exceeded (retryable)

`code` is public and permanent.  The core knows no HTTP: `server/errors.py` maps a class to a status.
Messages start lower case, name the thing and say what to do; they never hold a secret or guest output.
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class SpaceError(Exception):
    """An unexpected failure of SPACE itself; its message is not shown to callers."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, retry_after: float | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: Mapping[str, Any] = details
        self.retry_after = retry_after  #: seconds; None lets the server choose


class InvalidRequest(SpaceError):
    """Can never be accepted; `details.field` names what is wrong."""

    code = "invalid_request"


class UnsupportedMediaType(InvalidRequest):
    """The body is in a form that this route does not read."""


class MethodNotAllowed(InvalidRequest):
    """The path exists, the method does not."""


class Unauthenticated(SpaceError):
    """No valid token or session."""

    code = "unauthorized"


class PermissionDenied(SpaceError):
    """A valid caller who may not do this; `details.scope` names what is missing."""

    code = "forbidden"


class NotFound(SpaceError):
    """It does not exist, or belongs to another project."""

    code = "not_found"


class Conflict(SpaceError):
    """What exists says no."""

    code = "conflict"


class AlreadyExists(Conflict):
    """The name or id is taken."""


class OperationInProgress(Conflict):
    """Another change holds the sandbox; `details.operation_id` names it."""

    retryable = True


class StaleVersion(Conflict):
    """The row changed since it was read: read again and retry."""

    retryable = True


class IdempotencyConflict(SpaceError):
    """The idempotency key was used with another body."""

    code = "idempotency_conflict"


class FailedPrecondition(SpaceError):
    """The thing is in a state that does not allow this; waiting does not help."""

    code = "failed_precondition"


class InvalidTransition(FailedPrecondition):
    """The lifecycle does not allow this from the present state; `details.current_state` names it."""


class InUse(FailedPrecondition):
    """Somebody used the sandbox after it was thought to be idle."""


class StaleGeneration(FailedPrecondition):
    """A node was asked about a machine older than one that it has seen."""


class Unsupported(SpaceError):
    """This installation or runtime lacks the capability; `details.feature` names it."""

    code = "unsupported"


class PayloadTooLarge(SpaceError):
    """Over a fixed limit; `details.limit` gives it."""

    code = "payload_too_large"


class LimitExceeded(SpaceError):
    """Over a quota or a rate; `details.quota` names it."""

    code = "rate_limited"
    retryable = True


class InsufficientStorage(SpaceError):
    """A disk is full: the sandbox's own, or the host's."""

    code = "insufficient_storage"


class RuntimeFailed(SpaceError):
    """The runtime refused or died; its last log lines are in the server's log, not in the answer."""


class CapacityUnavailable(SpaceError):
    """No node has room."""

    code = "capacity_unavailable"
    retryable = True


class Unavailable(SpaceError):
    """A part of SPACE does not answer at the moment."""

    code = "service_unavailable"
    retryable = True


class GuestUnreachable(Unavailable):
    """The machine is up but its agent does not answer."""


class NodeUnreachable(Unavailable):
    """The node that owns the sandbox does not answer."""


class DeadlineExceeded(SpaceError):
    """It took longer than the caller or the server allowed."""

    code = "deadline_exceeded"
    retryable = True

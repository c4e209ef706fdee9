"""Operations that failed, as the errors that callers are given who waited for them."""

from collections.abc import Sequence

from space.core.errors import (
    CapacityUnavailable,
    DeadlineExceeded,
    FailedPrecondition,
    InsufficientStorage,
    NotFound,
    SpaceError,
    Unavailable,
    Unsupported,
)
from space.core.operation import Operation

_KINDS: Sequence[type[SpaceError]] = (
    CapacityUnavailable,
    Unavailable,
    DeadlineExceeded,
    FailedPrecondition,
    InsufficientStorage,
    Unsupported,
    NotFound,
)


def failure_of(operation: Operation) -> SpaceError:
    """Return the error that made an operation end without success, as far as its row tells."""
    error = operation.error or {}
    code = str(error.get("code"))
    message = str(error.get("message") or f"the sandbox's {operation.kind} was {operation.status}")
    kind = next((kind for kind in _KINDS if kind.code == code), None)
    return SpaceError(message) if kind is None else kind(message, operation_id=operation.id)

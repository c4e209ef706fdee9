# Generated from ../_async/operations.py by scripts/generate_sync_sdk.py: change it there.
"""Waiting for operations."""

import time

from space.sdk import http
from space.sdk._sync.transport import Transport
from space.sdk.errors import DeadlineExceededError
from space.sdk.model import Operation

LONGEST_POLL = 20  #: seconds; below the client's read timeout


def wait_operation(transport: Transport, operation: Operation, *, timeout: float | None = None) -> Operation:
    """Long-poll until the operation has ended; raise what it failed with."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while not operation.is_final:
        seconds: float = LONGEST_POLL
        if deadline is not None:
            seconds = min(seconds, deadline - time.monotonic())
            if seconds <= 0:
                raise DeadlineExceededError(
                    f"the operation {operation.id} ({operation.kind}) has not ended within {timeout:g} s; it goes on",
                    details={"operation_id": operation.id},
                    retryable=True,
                )
        response = transport.request("GET", f"/v1/operations/{operation.id}", query={"wait": max(1, round(seconds))})
        operation = Operation.parse(http.answer_object(response))
    failure = operation.failure()
    if failure is not None:
        raise failure
    return operation

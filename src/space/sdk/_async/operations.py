"""Waiting for operations."""

import time
from collections.abc import Callable

from space.sdk import http
from space.sdk._async.transport import AsyncTransport
from space.sdk.errors import DeadlineExceededError
from space.sdk.model import Operation

LONGEST_POLL = 20  #: seconds; below the client's read timeout


def prefer(wait: bool, timeout: float | None) -> dict[str, str]:
    """Return the header that asks the server to answer once the change is made, if the caller waits for it."""
    if not wait:
        return {}
    return {"Prefer": f"wait={max(1, round(min(LONGEST_POLL, timeout or LONGEST_POLL)))}"}


async def wait_operation(
    transport: AsyncTransport,
    operation: Operation,
    *,
    timeout: float | None = None,
    watch: Callable[[Operation], None] | None = None,
    every: float = LONGEST_POLL,
) -> Operation:
    """Long-poll until the operation has ended; raise what it failed with.

    `watch` is shown the operation whenever it was asked for: at least `every` so many seconds.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while not operation.is_final:
        seconds = every
        if deadline is not None:
            seconds = min(seconds, deadline - time.monotonic())
            if seconds <= 0:
                raise DeadlineExceededError(
                    f"the operation {operation.id} ({operation.kind}) has not ended within {timeout:g} s; it goes on",
                    details={"operation_id": operation.id},
                    retryable=True,
                )
        response = await transport.request(
            "GET", f"/v1/operations/{operation.id}", query={"wait": max(1, round(seconds))}
        )
        operation = Operation.parse(http.answer_object(response))
        if watch is not None:
            watch(operation)
    failure = operation.failure()
    if failure is not None:
        raise failure
    return operation

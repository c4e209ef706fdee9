"""What the store does with operations: who drives them, how far they are, how they end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from space.core.operation import Operation, Status
from space.core.sandbox import Sandbox
from space.core.snapshot import Published


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who drives an operation, and until when nobody else may."""

    owner: str
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an operation ended.  The resting state follows from `core.lifecycle.RULES`."""

    status: Status
    at: datetime
    error: Mapping[str, Any] | None = None  #: `{"code", "message"}` of a failure
    reason: str | None = None  #: of the sandbox, if it ends up failed
    published: Published | None = None  #: what its snapshot turned out to be: made ready in the same transaction


class OperationStore(Protocol):
    """The rows of operations.  Writes after a claim are fenced by the lease's owner and the attempt."""

    async def find(self, operation_id: str) -> Operation | None: ...

    async def claim(self, lease: Lease, *, now: datetime, limit: int) -> Sequence[Operation]:
        """Take over operations that nobody drives: queued, or with a lease that ran out."""
        ...

    async def renew(self, operation: Operation, lease: Lease) -> None: ...

    async def finish_step(
        self, operation: Operation, step: str, *, lease: Lease, progress: Mapping[str, Any] | None = None
    ) -> Operation:
        """Record that `step` is done, and renew; `progress` is added to what is there."""
        ...

    async def postpone(self, operation: Operation, *, until: datetime, error: Mapping[str, Any]) -> None:
        """Give the lease back after a failed attempt; nobody may claim it before `until`."""
        ...

    async def finish(self, operation: Operation, outcome: Outcome) -> tuple[Sandbox, Operation]:
        """End it: its row, its sandbox's state and the event together.

        A success is recorded as a failure if the sandbox left the states in which the operation may start, e.g.
        because its machine exited meanwhile.  A suspend, snapshot or fork that succeeds makes its snapshot ready,
        and it is the sandbox's from then on, unless the sandbox was suspended and has the same state already; one that
        fails leaves it to the collector.  Processes of a suspended sandbox go on as its next machine's; a recover
        brings those back that ran at its snapshot's moment.  What was published although the machine exited is not
        lost: a snapshot or fork succeeds, a suspend fails and leaves the sandbox restorable.  Operations that wait for
        this one may be claimed, or fail with it.
        """
        ...

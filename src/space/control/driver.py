"""Drives one operation: its steps in order, what happens when one fails, and its end."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from space.control.contexts import MAKES_SNAPSHOT, Contexts
from space.control.keys import ProjectKeys
from space.control.steps.step import Step, StepContext
from space.control.steps.suspend import published
from space.control.steps.undo import MUST_SUCCEED, UNDO
from space.core.errors import (
    CapacityUnavailable,
    DeadlineExceeded,
    FailedPrecondition,
    InsufficientStorage,
    InUse,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    SpaceError,
    StaleVersion,
    Unsupported,
)
from space.core.ids import OperationId
from space.core.lifecycle import Kind
from space.core.operation import Operation, Status
from space.core.ports import Clock, NodeClient
from space.core.store import Lease, Outcome, Store
from space.host.failpoint import failpoint

log = structlog.get_logger()

_FINAL = (
    InvalidRequest,
    NotFound,
    Unsupported,
    PermissionDenied,
    FailedPrecondition,
    InsufficientStorage,
    DeadlineExceeded,
)
_MAX_CLAIMS = 10  # servers that may die over an operation before it fails
_CLEAR_UP_SECONDS = 10.0  # for one act of clearing up: less than a lease, which is renewed meanwhile
_FAILURE = "failure"  # in the progress: the operation is to fail, and only clearing up is left


@dataclass(slots=True)
class Driven:
    """An operation in the hands of this process."""

    operation: Operation
    leased_until: datetime
    task: "asyncio.Task[Any] | None"

    @property
    def key(self) -> tuple[OperationId, int]:
        return self.operation.id, self.operation.attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a step may take, in seconds, and how often it is tried.

    What copies a machine's memory takes as long as that is large and the object store slow.
    """

    start_seconds: float = 60
    restore_seconds: float = 300
    save_seconds: float = 600
    attempts: int = 3

    def seconds(self, context: StepContext) -> float:
        if context.operation.kind in MAKES_SNAPSHOT:
            return self.save_seconds
        return self.start_seconds if context.restore is None else self.restore_seconds


class Driver:
    """Runs operations that this process holds the lease of.  Whoever lost it learns that from `StaleVersion`."""

    def __init__(
        self,
        store: Store,
        node: NodeClient,
        clock: Clock,
        *,
        keys: ProjectKeys | None,
        limits: Limits,
        steps: Mapping[Kind, Sequence[Step]],
        lease: Callable[[], Lease],
    ) -> None:
        self._store = store
        self._node = node
        self._clock = clock
        self._contexts = Contexts(store, node, clock, keys)
        self._limits = limits
        self._steps = steps
        self._lease = lease

    async def run(self, driven: Driven) -> str:
        """Bring an operation to its end, or to its next attempt; returns how it stands."""
        operation = driven.operation
        failpoint(f"{operation.kind}.admitted")
        sandbox = await self._store.sandboxes.find(operation.sandbox_id)
        if sandbox is None or sandbox.held_by != operation.id:
            raise StaleVersion(f"operation {operation.id} no longer holds its sandbox")
        context = self._contexts.bare(operation, sandbox)
        if _FAILURE in operation.progress:
            return await self._conclude(driven, context, operation.progress[_FAILURE])
        if operation.attempt > _MAX_CLAIMS and operation.kind is not Kind.DELETE:
            return await self._fail(driven, context, DeadlineExceeded("every server that drove this died of it"))
        try:
            context = await self._contexts.full(operation, sandbox)
        except StaleVersion:
            raise
        except Exception as error:
            return await self._failed(driven, context, error)
        steps = self._steps.get(operation.kind, ())
        for step in _remaining(steps, operation.step):
            failure = await self._do(driven, context, step, is_last=step is steps[-1])
            if failure is not None:
                return await self._failed(driven, context, failure)
        return await self._succeed(driven, context)

    async def abandoned(self, operation: Operation) -> None:
        """Clear up after an operation that was taken away: a moment that a delete made useless."""
        if operation.kind not in MAKES_SNAPSHOT or operation.snapshot_id is None:
            return
        current = await self._store.operations.find(operation.id)
        if current is None or current.status is Status.CANCELLED:
            await self._try("snapshot.not_discarded", operation, self._node.discard(operation.snapshot_id))

    async def _do(self, driven: Driven, context: StepContext, step: Step, *, is_last: bool) -> Exception | None:
        """Do one step and record it; returns why it failed."""
        kind, name, seconds = driven.operation.kind, step.__name__, self._limits.seconds(context)
        failpoint(f"{kind}.before_{name}")
        try:
            async with asyncio.timeout(seconds):
                progress = await step(context)
        except TimeoutError:
            return DeadlineExceeded(f"{name} took longer than {seconds:g} s", limit=seconds)
        except Exception as error:
            return error
        failpoint(f"{kind}.after_{name}")
        if progress or not is_last:
            operations = self._store.operations
            driven.operation = await operations.finish_step(
                driven.operation, name, lease=self._lease(), progress=progress
            )
            failpoint(f"{kind}.recorded_{name}")
        return None

    async def _succeed(self, driven: Driven, context: StepContext) -> str:
        operation = driven.operation
        outcome = Outcome(status=Status.SUCCEEDED, at=self._clock.now(), published=published(operation))
        _, finished = await self._store.operations.finish(operation, outcome)
        failpoint(f"{operation.kind}.finished")
        if finished.status is not Status.SUCCEEDED:  # its machine ended meanwhile
            await self._undo(operation, context)
        elif operation.kind is Kind.SUSPEND:
            await self._try("machine.not_released", operation, self._node.release(context.machine))
        return finished.status

    # Failures

    async def _failed(self, driven: Driven, context: StepContext, error: Exception) -> str:
        """Try again later, or end the operation: a delete is tried for ever, all others a few times."""
        operation = driven.operation
        if isinstance(error, InUse):
            log.info("operation.sandbox_in_use", operation=operation.id, sandbox=operation.sandbox_id)
            await self._store.sandboxes.touch({operation.sandbox_id: _last_use(error, self._clock.now())})
        else:
            log.warning("operation.step_failed", operation=operation.id, kind=operation.kind, error=repr(error))
        if operation.kind is not Kind.DELETE and not self._may_retry(operation, context, error):
            return await self._fail(driven, context, error)
        return await self._postpone(operation, _describe(error))

    def _may_retry(self, operation: Operation, context: StepContext, error: Exception) -> bool:
        if operation.attempt >= self._limits.attempts or isinstance(error, _FINAL):
            return False
        begun = operation.started_at or operation.created_at
        return (self._clock.now() - begun).total_seconds() < self._limits.seconds(context)

    async def _fail(self, driven: Driven, context: StepContext, error: Exception) -> str:
        """Decide that the operation fails, write that down, and only then undo what it did.

        Without the note a successor could go on with a moment from which the machine has gone on since.
        """
        failure = {**_describe(error), "reason": _reason(error)}
        driven.operation = await self._store.operations.finish_step(
            driven.operation, driven.operation.step or "admitted", lease=self._lease(), progress={_FAILURE: failure}
        )
        failpoint(f"{driven.operation.kind}.before_failure")
        return await self._conclude(driven, context, failure)

    async def _conclude(self, driven: Driven, context: StepContext, failure: Mapping[str, Any]) -> str:
        operation = driven.operation
        error = {"code": failure["code"], "message": failure["message"]}
        if not await self._undo(operation, context) and operation.attempt < _MAX_CLAIMS:
            return await self._postpone(operation, error)
        failpoint(f"{operation.kind}.undone")
        outcome = Outcome(status=Status.FAILED, at=self._clock.now(), error=error, reason=failure["reason"])
        _, finished = await self._store.operations.finish(operation, outcome)
        return finished.status

    async def _postpone(self, operation: Operation, error: Mapping[str, Any]) -> str:
        seconds = min(30.0, 0.5 * 2 ** min(operation.attempt, 10))
        until = self._clock.now() + timedelta(seconds=seconds)
        await self._store.operations.postpone(operation, until=until, error=error)
        return "postponed"

    async def _undo(self, operation: Operation, context: StepContext) -> bool:
        """Undo what was done; returns whether nothing is left that only we can repair."""
        failed = {
            act
            for act in UNDO.get(operation.kind, ())
            if not await self._try(f"undo.{act.__name__}_failed", operation, act(context))
        }
        return not failed & MUST_SUCCEED

    async def _try(self, event: str, operation: Operation, act: Awaitable[None]) -> bool:
        """Do something that may fail; returns whether it did not."""
        try:
            async with asyncio.timeout(_CLEAR_UP_SECONDS):
                await act
        except Exception as error:
            log.warning(event, operation=operation.id, sandbox=operation.sandbox_id, error=repr(error))
            return False
        return True


def _remaining(steps: Sequence[Step], done: str | None) -> Sequence[Step]:
    names = [step.__name__ for step in steps]
    return steps[names.index(done) + 1 :] if done in names else steps


def _last_use(error: InUse, now: datetime) -> datetime:
    """Return what the node knows better than the row: the sandbox is idle from then on, not from now."""
    told = error.details.get("last_used_at")
    return now if told is None else min(now, datetime.fromisoformat(told))


def _describe(error: Exception) -> dict[str, Any]:
    if isinstance(error, SpaceError) and type(error) is not SpaceError:
        return {"code": error.code, "message": error.message}
    return {"code": "internal", "message": "an unexpected failure of SPACE; its log says more"}


def _reason(error: Exception) -> str:
    match error:
        case DeadlineExceeded():
            return "boot_timeout"
        case CapacityUnavailable():
            return "no_capacity"
        case _:
            return "boot_failed"

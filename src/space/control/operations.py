"""Operations: what callers see of them, and the worker that drives them to their end.

An operation is driven by whoever holds its lease.  Its own server drives it at once; what a dead server left is
claimed when the lease has run out, and goes on at the first step that is not recorded.  Whoever lost the lease, or
was preempted by a delete, learns it from its next fenced write and stops.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import structlog

from space.control.steps import STEPS
from space.control.steps.step import Step, StepContext
from space.core.account import Principal
from space.core.errors import (
    CapacityUnavailable,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    SpaceError,
    StaleVersion,
    Unavailable,
    Unsupported,
)
from space.core.ids import OperationId
from space.core.lifecycle import RULES, Kind
from space.core.node import MachineRef
from space.core.operation import Operation, Status
from space.core.ports import Clock, NodeClient
from space.core.sandbox import Sandbox
from space.core.store import Lease, Outcome, Store
from space.host.failpoint import failpoint

T = TypeVar("T")
log = structlog.get_logger()

_FINAL = (InvalidRequest, NotFound, Unsupported, PermissionDenied, FailedPrecondition, DeadlineExceeded)
_BACKSTOP_SECONDS = 5.0  # a waiter reads the row this often even if nobody wakes it
_MAX_DRIVEN = 64  # operations that a worker claims to drive at once; its own server's calls come on top
_MAX_CLAIMS = 10  # servers that may die over an operation before it fails
_REMOVE_SECONDS = 15.0  # for clearing up after a failed start; the reconciler repairs what this leaves


class Operations:
    """Reading and awaiting operations."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def get(self, who: Principal, operation_id: str) -> Operation:
        """Return an operation of the caller's project."""
        operation = await self._store.operations.find(operation_id)
        if operation is None or operation.project_id != who.project_id:
            raise NotFound(f"no operation {operation_id[:64]}", id=operation_id[:64])
        return operation

    async def wait(self, who: Principal, operation_id: str, *, seconds: float) -> Operation:
        """Return the operation once it has ended, or as it is after `seconds`."""
        deadline = self._clock.monotonic() + seconds
        with self._store.watch(operation_id) as watch:
            while True:
                operation = await self.get(who, operation_id)
                left = deadline - self._clock.monotonic()
                if operation.status.is_final or left <= 0:
                    return operation
                await watch.wait(min(left, _BACKSTOP_SECONDS))


@dataclass(slots=True)
class _Driven:
    operation: Operation
    leased_until: datetime
    task: "asyncio.Task[Any] | None"

    @property
    def key(self) -> tuple[OperationId, int]:
        return self.operation.id, self.operation.attempt


class Worker:
    """Drives operations.  `run` owns all its tasks; nothing is admitted while it does not run."""

    def __init__(
        self,
        store: Store,
        node: NodeClient,
        clock: Clock,
        *,
        owner: str | None = None,
        lease_seconds: float = 15,
        create_deadline_seconds: float = 60,
        max_attempts: int = 3,
        poll_seconds: float = 1.0,
        steps: Mapping[Kind, Sequence[Step]] = STEPS,
    ) -> None:
        self._store = store
        self._node = node
        self._clock = clock
        self._owner = owner or f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"
        self._lease_seconds = lease_seconds
        self._deadline = create_deadline_seconds
        self._max_attempts = max_attempts
        self._poll_seconds = poll_seconds
        self._steps = steps
        self._driven: dict[tuple[OperationId, int], _Driven] = {}  # by id and attempt: each claim is another
        self._tasks: asyncio.TaskGroup | None = None

    def lease(self) -> Lease:
        """Return a lease for this worker, from now on."""
        return Lease(owner=self._owner, until=self._clock.now() + timedelta(seconds=self._lease_seconds))

    async def run(self) -> None:
        """Drive what is admitted here and what nobody else drives, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                while True:
                    await self._renew_leases()  # before claiming: after a long stall it would claim its own
                    await self._claim()
                    await self._clock.sleep(self._poll_seconds)
            finally:
                self._tasks = None

    async def admit(self, record: Callable[[], Awaitable[tuple[T, Operation | None]]]) -> T:
        """Run the transaction `record`, return its first result, and drive the operation that it returns.

        The caller may be cancelled at any time: what was committed is driven all the same.
        """
        if self._tasks is None:
            raise Unavailable("the server is starting or stopping; try again", retry_after=1)
        admitted: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def give_up(_task: object) -> None:
            if not admitted.done():
                admitted.set_exception(Unavailable("the server is stopping; try again", retry_after=1))

        task = self._tasks.create_task(self._record_and_drive(record, admitted))
        task.add_done_callback(give_up)
        return await admitted

    async def _record_and_drive(
        self, record: Callable[[], Awaitable[tuple[T, Operation | None]]], admitted: "asyncio.Future[T]"
    ) -> None:
        try:
            result, operation = await record()
        except Exception as error:
            if not admitted.done():
                admitted.set_exception(error)
            return
        if not admitted.done():
            admitted.set_result(result)
        if operation is not None:
            await self._drive(operation)

    async def _claim(self) -> None:
        try:
            room = _MAX_DRIVEN - len(self._driven)
            claimed = await self._store.operations.claim(self.lease(), now=self._clock.now(), limit=max(0, room))
        except Exception as error:  # the worker must outlive whatever the store does
            log.warning("operation.not_claimed", error=repr(error))
            return
        for operation in claimed:
            log.info("operation.claimed", operation=operation.id, kind=operation.kind, attempt=operation.attempt)
            if self._tasks is not None:
                self._tasks.create_task(self._drive(operation))

    async def _renew_leases(self) -> None:
        now = self._clock.now()
        due = now + timedelta(seconds=self._lease_seconds * 2 / 3)
        async with asyncio.TaskGroup() as renewals:
            for driven in self._driven.values():
                if driven.leased_until <= due:
                    renewals.create_task(self._renew(driven))

    async def _renew(self, driven: _Driven) -> None:
        lease = self.lease()
        try:
            await self._store.operations.renew(driven.operation, lease)
            driven.leased_until = lease.until
        except StaleVersion:
            if driven.task is not None and driven.key in self._driven:
                driven.task.cancel()  # another one drives it, or it was preempted
        except Exception as error:
            log.warning("operation.lease_not_renewed", operation=driven.operation.id, error=repr(error))

    async def _drive(self, operation: Operation) -> None:
        driven = _Driven(operation, operation.lease_until or self._clock.now(), asyncio.current_task())
        self._driven[driven.key] = driven
        begun = self._clock.monotonic()
        try:
            status = await self._run(driven)
        except StaleVersion:
            log.info("operation.preempted", operation=operation.id, kind=operation.kind)
        except Exception as error:  # e.g. the database is full: the lease runs out and the operation is claimed anew
            log.error("operation.interrupted", operation=operation.id, kind=operation.kind, error=repr(error))
        else:
            seconds = round(self._clock.monotonic() - begun, 4)
            log.info(
                f"operation.{status}",
                operation=operation.id,
                kind=operation.kind,
                sandbox=operation.sandbox_id,
                generation=operation.generation,
                seconds=seconds,
            )
        finally:
            del self._driven[driven.key]

    async def _run(self, driven: _Driven) -> str:
        operation = driven.operation
        failpoint(f"{operation.kind}.admitted")
        sandbox = await self._store.sandboxes.find(operation.sandbox_id)
        if sandbox is None or sandbox.held_by != operation.id:
            raise StaleVersion(f"operation {operation.id} no longer holds its sandbox")
        if operation.attempt > _MAX_CLAIMS and operation.kind is not Kind.DELETE:
            return await self._failed(operation, sandbox, DeadlineExceeded("every server that drove this died of it"))
        context = StepContext(sandbox=sandbox, operation=operation, node=self._node)
        steps = self._steps.get(operation.kind, ())
        for step in _remaining(steps, operation.step):
            name = step.__name__
            failpoint(f"{operation.kind}.before_{name}")
            try:
                async with asyncio.timeout(self._deadline):
                    await step(context)
            except TimeoutError:
                error = DeadlineExceeded(f"{name} took longer than {self._deadline:g} s", limit=self._deadline)
                return await self._failed(driven.operation, sandbox, error)
            except Exception as error:
                return await self._failed(driven.operation, sandbox, error)
            failpoint(f"{operation.kind}.after_{name}")
            if step is not steps[-1]:
                driven.operation = await self._store.operations.finish_step(driven.operation, name, lease=self.lease())
                failpoint(f"{operation.kind}.recorded_{name}")
        outcome = Outcome(status=Status.SUCCEEDED, at=self._clock.now())
        _, finished = await self._store.operations.finish(driven.operation, outcome)
        failpoint(f"{operation.kind}.finished")
        return finished.status

    async def _failed(self, operation: Operation, sandbox: Sandbox, error: Exception) -> str:
        """Try again later, or end the operation: a delete is tried for ever, all others a few times."""
        described = _describe(error)
        log.warning("operation.step_failed", operation=operation.id, kind=operation.kind, error=repr(error))
        if operation.kind is Kind.DELETE or self._may_retry(operation, error):
            seconds = min(30.0, 0.5 * 2 ** min(operation.attempt, 10))
            await self._store.operations.postpone(
                operation, until=self._clock.now() + timedelta(seconds=seconds), error=described
            )
            return "postponed"
        if sandbox.state in RULES[operation.kind].starts_machine:
            await self._clear_up(MachineRef(operation.sandbox_id, operation.generation))
        failpoint(f"{operation.kind}.before_failure")
        outcome = Outcome(status=Status.FAILED, at=self._clock.now(), error=described, reason=_reason(error))
        _, finished = await self._store.operations.finish(operation, outcome)
        return finished.status

    def _may_retry(self, operation: Operation, error: Exception) -> bool:
        if operation.attempt >= self._max_attempts or isinstance(error, _FINAL):
            return False
        begun = operation.started_at or operation.created_at
        return (self._clock.now() - begun).total_seconds() < self._deadline

    async def _clear_up(self, machine: MachineRef) -> None:
        try:
            async with asyncio.timeout(_REMOVE_SECONDS):
                await self._node.remove(machine)
        except Exception as error:
            log.warning("machine.not_removed", sandbox=machine.sandbox_id, error=repr(error))


def _remaining(steps: Sequence[Step], done: str | None) -> Sequence[Step]:
    names = [step.__name__ for step in steps]
    return steps[names.index(done) + 1 :] if done in names else steps


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

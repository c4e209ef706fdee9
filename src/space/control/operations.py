"""Operations: what callers see of them, and the worker that drives them to their end.

An operation is driven by whoever holds its lease.  Its own server drives it at once; what a dead server left is
claimed when the lease has run out, and goes on at the first step that is not recorded.  Whoever lost the lease, or
was preempted by a delete, learns it from its next fenced write and stops.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

import structlog

from space.control.driver import Driven, Driver, Limits
from space.control.keys import ProjectKeys
from space.control.steps import STEPS
from space.control.steps.step import Step
from space.core.account import Principal
from space.core.errors import NotFound, StaleVersion, Unavailable
from space.core.ids import OperationId
from space.core.lifecycle import Kind
from space.core.operation import Operation
from space.core.ports import Clock, NodeClient
from space.core.store import Lease, Store

T = TypeVar("T")
log = structlog.get_logger()

_BACKSTOP_SECONDS = 5.0  # a waiter reads the row this often even if nobody wakes it
_MAX_DRIVEN = 64  # operations that a worker claims to drive at once; its own server's calls come on top
_STARTS = frozenset({Kind.CREATE, Kind.WAKE, Kind.RECOVER})


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


class Worker:
    """Drives operations.  `run` owns all its tasks; nothing is admitted while it does not run."""

    def __init__(
        self,
        store: Store,
        node: NodeClient,
        clock: Clock,
        *,
        keys: ProjectKeys | None = None,
        owner: str | None = None,
        lease_seconds: float = 15,
        create_deadline_seconds: float = 60,
        restore_deadline_seconds: float = 300,
        save_deadline_seconds: float = 600,
        max_attempts: int = 3,
        poll_seconds: float = 1.0,
        steps: Mapping[Kind, Sequence[Step]] = STEPS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner or f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds
        limits = Limits(
            start_seconds=create_deadline_seconds,
            restore_seconds=max(create_deadline_seconds, restore_deadline_seconds),
            save_seconds=save_deadline_seconds,
            attempts=max_attempts,
        )
        self._driver = Driver(store, node, clock, keys=keys, limits=limits, steps=steps, lease=self.lease)
        self._driven: dict[tuple[OperationId, int], Driven] = {}  # by id and attempt: each claim is another
        self._is_full = False  # whether more may be due than was claimed
        self._look = asyncio.Event()  # something may be due before the next poll
        self._tasks: asyncio.TaskGroup | None = None

    def lease(self) -> Lease:
        """Return a lease for this worker, from now on."""
        return Lease(owner=self._owner, until=self._clock.now() + timedelta(seconds=self._lease_seconds))

    def starting(self) -> int:
        """Count the machines that are being brought up for somebody who waits."""
        return sum(driven.operation.kind in _STARTS for driven in self._driven.values())

    async def run(self) -> None:
        """Drive what is admitted here and what nobody else drives, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                while True:
                    self._look.clear()
                    await self._renew_leases()  # before claiming: after a long stall it would claim its own
                    await self._claim()
                    await self._rest()
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
        room = max(0, _MAX_DRIVEN - len(self._driven))
        try:
            claimed = await self._store.operations.claim(self.lease(), now=self._clock.now(), limit=room)
        except Exception as error:  # the worker must outlive whatever the store does
            log.warning("operation.not_claimed", error=repr(error))
            return
        self._is_full = len(claimed) == room
        for operation in claimed:
            log.info("operation.claimed", operation=operation.id, kind=operation.kind, attempt=operation.attempt)
            if self._tasks is not None:
                self._tasks.create_task(self._drive(operation))

    async def _rest(self) -> None:
        """Return at the next poll, or when something may be due."""
        waiting = [
            asyncio.ensure_future(self._look.wait()),
            asyncio.ensure_future(self._clock.sleep(self._poll_seconds)),
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    async def _renew_leases(self) -> None:
        now = self._clock.now()
        due = now + timedelta(seconds=self._lease_seconds * 2 / 3)
        async with asyncio.TaskGroup() as renewals:
            for driven in self._driven.values():
                if driven.leased_until <= due:
                    renewals.create_task(self._renew(driven))

    async def _renew(self, driven: Driven) -> None:
        lease = self.lease()
        try:
            await self._store.operations.renew(driven.operation, lease)
            driven.leased_until = lease.until
        except StaleVersion:
            if driven.task is not None and driven.key in self._driven:
                driven.task.cancel()  # another one drives it, or it was preempted
                if self._tasks is not None:
                    self._tasks.create_task(self._abandon(driven.operation))
        except Exception as error:
            log.warning("operation.lease_not_renewed", operation=driven.operation.id, error=repr(error))

    async def _drive(self, operation: Operation) -> None:
        driven = Driven(operation, operation.lease_until or self._clock.now(), asyncio.current_task())
        self._driven[driven.key] = driven
        begun = self._clock.monotonic()
        try:
            status = await self._driver.run(driven)
        except StaleVersion:
            log.info("operation.preempted", operation=operation.id, kind=operation.kind)
            await self._abandon(operation)
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
            if self._is_full or operation.kind is Kind.FORK:  # its children need not wait for the next poll
                self._look.set()

    async def _abandon(self, operation: Operation) -> None:
        try:
            await self._driver.abandoned(operation)
        except Exception as error:
            log.warning("operation.not_cleared_up", operation=operation.id, error=repr(error))

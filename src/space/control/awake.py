"""Machines that can be used: those that run, and those that a request may wake first.

A sandbox with `wake_on_request` is woken by whoever needs its machine.  All that wait here share one wake; a pause or
suspend that is under way is waited for, and if it fails there is nothing to wake.  Every other sandbox that does not
run is refused, as `core.lifecycle.require_running` says.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import structlog

from space.control.access import holder_of, own_sandbox
from space.control.activity import Activity
from space.control.changes import Changes
from space.control.failure import failure_of
from space.control.operations import Operations
from space.core.account import Call, Principal
from space.core.errors import InvalidTransition, OperationInProgress
from space.core.ids import OperationId, SandboxId
from space.core.lifecycle import Kind, State, require_running
from space.core.node import MachineRef
from space.core.operation import Operation, Status
from space.core.ports import Clock
from space.core.sandbox import Sandbox
from space.core.store import Store

T = TypeVar("T")
log = structlog.get_logger()

ACTION = "wakeSandbox"  #: what the audit log calls a wake that a request implied
_ATTEMPTS = 5  # of one request: a sandbox that keeps falling asleep is nobody's to use
_ONE_WAIT_SECONDS = 60.0
_ASLEEP = (State.PAUSED, State.SUSPENDED)


class Awake:
    """Finds machines for requests, and wakes them where that is wanted."""

    def __init__(
        self, store: Store, clock: Clock, changes: Changes, operations: Operations, activity: Activity
    ) -> None:
        self._store = store
        self._clock = clock
        self._changes = changes
        self._operations = operations
        self._activity = activity
        self._waking: dict[SandboxId, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def using(self, who: Principal | Call, sandbox_id: str) -> AsyncIterator[MachineRef]:
        """Yield the sandbox's machine; the sandbox is not idle before the block has ended.

        Raises `NotFound`, what `require_running` raises, and why it could not be woken.
        """
        call = who if isinstance(who, Call) else _implied(who)
        sandbox = await own_sandbox(self._store, call.principal, sandbox_id)
        if not may_wake(sandbox):  # what is refused is no use
            require_running(sandbox.state, held_by=holder_of(sandbox))
        with self._activity.using(sandbox.id):
            yield await self._machine(call, sandbox)

    async def rouse(self, who: Principal | Call, sandbox_id: str) -> None:
        """Wake the sandbox if it sleeps and wants to be woken; one that sleeps otherwise sleeps on."""
        call = who if isinstance(who, Call) else _implied(who)
        sandbox = await own_sandbox(self._store, call.principal, sandbox_id)
        if may_wake(sandbox):
            with self._activity.using(sandbox.id):
                await self._machine(call, sandbox)

    async def attempt(self, who: Principal | Call, sandbox_id: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work`, which checks by itself whether the sandbox runs, again after waking it."""
        try:
            return await work()
        except (InvalidTransition, OperationInProgress):
            call = who if isinstance(who, Call) else _implied(who)
            sandbox = await own_sandbox(self._store, call.principal, sandbox_id)
            if not may_wake(sandbox) and not _runs(sandbox):
                raise
        with self._activity.using(sandbox.id):
            for _ in range(_ATTEMPTS):
                await self._machine(call, sandbox)
                try:
                    return await work()
                except (InvalidTransition, OperationInProgress):  # asleep again, or changed
                    sandbox = await own_sandbox(self._store, call.principal, sandbox_id)
        return await work()

    async def aclose(self) -> None:
        """Stop waiting for wakes; the operations go on."""
        tasks = list(self._waking.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _machine(self, call: Call, sandbox: Sandbox) -> MachineRef:
        for _ in range(_ATTEMPTS):
            if _runs(sandbox):
                return MachineRef(sandbox.id, sandbox.generation)
            if not may_wake(sandbox):
                break
            await self._wake_once(call, sandbox)
            sandbox = await own_sandbox(self._store, call.principal, sandbox.id)
        require_running(sandbox.state, held_by=holder_of(sandbox))
        return MachineRef(sandbox.id, sandbox.generation)

    async def _wake_once(self, call: Call, sandbox: Sandbox) -> None:
        """Wait for the wake that is under way, or begin one; a waiter that leaves does not end it for the others."""
        task = self._waking.get(sandbox.id)
        if task is None or task.done():  # over, and not yet forgotten: its wait was for an earlier sleep
            task = self._waking[sandbox.id] = asyncio.create_task(self._wake(call, sandbox))
            task.add_done_callback(lambda done: self._forget(sandbox.id, done))
        await asyncio.shield(task)

    async def _wake(self, call: Call, sandbox: Sandbox) -> None:
        if sandbox.held_by is not None:  # it falls asleep or wakes already: look again after that
            await self._end_of(call.principal, sandbox.held_by)
            return
        implied = Call(principal=call.principal, action=ACTION, request_id=call.request_id, address=call.address)
        try:
            changed = await self._changes.ask(implied, sandbox, Kind.WAKE, for_request=call.action)
        except (InvalidTransition, OperationInProgress):
            return  # it changed meanwhile
        operation = await self._end_of(call.principal, changed.operation.id)
        if operation.status is Status.FAILED:
            log.warning("sandbox.not_woken", sandbox=sandbox.id, operation=operation.id)
            raise failure_of(operation)

    async def _end_of(self, who: Principal, operation_id: OperationId) -> Operation:
        while True:
            operation = await self._operations.wait(who, operation_id, seconds=_ONE_WAIT_SECONDS)
            if operation.status.is_final:
                return operation

    def _forget(self, sandbox_id: SandboxId, task: "asyncio.Task[None]") -> None:
        if self._waking.get(sandbox_id) is task:
            del self._waking[sandbox_id]
        if not task.cancelled():
            task.exception()  # whoever waited has it; nobody may be left who does


def may_wake(sandbox: Sandbox) -> bool:
    """Whether a request for the machine waits until it is awake."""
    if not sandbox.auto_lifecycle.wake_on_request or sandbox.held_kind is Kind.DELETE:
        return False
    return sandbox.state in _ASLEEP or sandbox.held_kind in (Kind.PAUSE, Kind.SUSPEND)


def _runs(sandbox: Sandbox) -> bool:
    return sandbox.shown_state == State.RUNNING


def _implied(who: Principal) -> Call:
    """Return a call for a request of which no more is known than who made it."""
    return Call(principal=who, action="read", request_id="implied")

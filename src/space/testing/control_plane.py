"""A control plane in a directory: the real store and worker, a node in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from space.control.keys import ProjectKeys
from space.control.operations import Operations, Worker
from space.control.sandboxes import Sandboxes
from space.core.account import ALL_SCOPES, Call, IdempotencyRef, Principal
from space.core.event import AuditEntry
from space.core.ids import ProjectId, TokenId
from space.core.node import MachineRef
from space.core.operation import Operation, Status
from space.core.ports import Clock, SessionStatus
from space.core.sandbox import Sandbox, SandboxSpec
from space.core.store import Changed
from space.host.clock import SystemClock
from space.storage.sql.store import SqlStore, open_store
from space.testing.node import FakeNode
from space.testing.projects import add_project
from space.testing.sealer import FakeSealer
from space.testing.templates import FakeTemplates

PROJECT = ProjectId("prj" + "0" * 26)
OTHER_PROJECT = ProjectId("prj" + "0" * 25 + "4")


def principal(project_id: ProjectId = PROJECT, **changes: Any) -> Principal:
    """Return a caller who may do anything in the project."""
    token_id = TokenId("tok" + project_id[3:])
    return Principal(
        **{"id": token_id, "token_id": token_id, "project_id": project_id, "scopes": ALL_SCOPES, **changes}
    )


def a_call(
    action: str = "createSandbox", *, who: Principal | None = None, idempotency: IdempotencyRef | None = None
) -> Call:
    """Return a request by `who`."""
    return Call(
        principal=who or principal(), action=action, request_id="req-1", address="127.0.0.1", idempotency=idempotency
    )


class NoProcesses:
    """`control.observations.ProcessWatcher` where no process matters."""

    async def apply_status(self, status: SessionStatus) -> None: ...

    async def lose_all(self, ref: MachineRef, reason: str) -> None: ...


@dataclass(slots=True)
class ControlPlane:
    """What tests use; its parts are real but for the node."""

    store: SqlStore
    node: FakeNode
    clock: Clock
    worker: Worker
    sandboxes: Sandboxes
    operations: Operations

    async def create(self, **changes: Any) -> tuple[Sandbox, Operation]:
        """Ask for a sandbox of the base template."""
        return await self.sandboxes.create(a_call(), SandboxSpec(**{"template": "base", **changes}))

    async def running(self, **changes: Any) -> Sandbox:
        """Create a sandbox and wait until it runs."""
        sandbox, operation = await self.create(**changes)
        ended = await self.operations.wait(principal(), operation.id, seconds=10)
        assert ended.status == "succeeded", ended
        return await self.get(sandbox.id)

    async def get(self, sandbox_id: str) -> Sandbox:
        return await self.sandboxes.get(principal(), sandbox_id)

    async def delete(self, sandbox_id: str) -> Operation:
        return await self.sandboxes.delete(a_call("deleteSandbox"), sandbox_id)

    async def done(self, change: Awaitable[Changed]) -> Operation:
        """Ask for a change, e.g. `plane.sandboxes.suspend(a_call(), sandbox.id)`, and wait until it has succeeded."""
        ended = await self.ended((await change).operation)
        assert ended.status is Status.SUCCEEDED, ended
        return ended

    async def suspended(self, **changes: Any) -> Sandbox:
        """Create a sandbox and suspend it."""
        sandbox = await self.running(**changes)
        await self.done(self.sandboxes.suspend(a_call("suspendSandbox"), sandbox.id))
        await self.idle()
        return await self.get(sandbox.id)

    async def idle(self) -> None:
        """Wait until the worker drives nothing."""
        async with asyncio.timeout(20):
            while self.worker._driven:  # noqa: ASYNC110  nobody tells of it
                await asyncio.sleep(0.002)

    async def ended(self, operation: Operation, *, seconds: float = 10) -> Operation:
        """Wait for the operation's end."""
        ended = await self.operations.wait(principal(), operation.id, seconds=seconds)
        assert ended.status.is_final, ended
        return ended


@contextlib.asynccontextmanager
async def control_plane(
    directory: Path,
    *,
    node: FakeNode | None = None,
    clock: Clock | None = None,
    is_working: bool = True,
    **worker_options: Any,
) -> AsyncIterator[ControlPlane]:
    """Open a control plane on `directory`, which may have been used before; the worker runs if `is_working`."""
    clock = clock or SystemClock()
    node = node or FakeNode()
    store = open_store(directory / "space.db")
    try:
        for number, project_id in enumerate((PROJECT, OTHER_PROJECT)):
            await add_project(store, project_id, name=f"project-{number}", at=clock.now())
        keys = ProjectKeys(store, FakeSealer())
        worker = Worker(store, node, clock, keys=keys, **{"poll_seconds": 0.02, **worker_options})
        sandboxes = Sandboxes(store, node, FakeTemplates(), clock, worker)
        plane = ControlPlane(store, node, clock, worker, sandboxes, Operations(store, clock))
        task = asyncio.create_task(worker.run()) if is_working else None
        await asyncio.sleep(0)
        try:
            yield plane
        finally:
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
    finally:
        await store.aclose()


def audit_entry(plane: ControlPlane) -> AuditEntry:
    """Return an entry for calls of the store itself."""
    return AuditEntry(
        project_id=PROJECT,
        principal="tok",
        action="test",
        target=None,
        outcome="ok",
        request_id="req-1",
        address=None,
        details={},
        at=plane.clock.now(),
    )

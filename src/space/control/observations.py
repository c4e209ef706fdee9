"""What nodes see, brought into the rows: machines that ended unasked, and whatever a lost call left.

Two sources.  `observations` is quick and may lose an entry; `report` is complete and compared with the rows every few
seconds, so a lost entry is late, not lost.  The order of reading matters: a machine is *missing* only if its row said
"running" before the report was made, and *unknown* only if no row wants it after.  Rows are committed before nodes
are called, so neither a machine that just started nor one that just ended is misjudged.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import structlog

from space.core.errors import SpaceError
from space.core.ids import NodeId, SandboxId
from space.core.lifecycle import Kind, State
from space.core.node import MachineRef
from space.core.ports import Clock, MachineExited, NodeClient, SessionStatus
from space.core.store import Store

log = structlog.get_logger()

_WITH_MACHINE = (State.RUNNING, State.PAUSED)
_RETRY_SECONDS = 1.0
_MISSING = "runtime_exited"

Desired = Mapping[SandboxId, tuple[int, State, Kind | None]]


class ProcessWatcher(Protocol):
    """Who keeps the rows of processes: `control.commands`."""

    async def apply_status(self, status: SessionStatus) -> None:
        """Take over what a journal says of its process."""
        ...

    async def lose_all(self, ref: MachineRef, reason: str) -> None:
        """Take note that the machine is gone, and with it what ran there."""
        ...


class Observations:
    """Follows one node."""

    def __init__(
        self,
        store: Store,
        node: NodeClient,
        clock: Clock,
        processes: ProcessWatcher,
        *,
        reconcile_seconds: float = 5.0,
    ) -> None:
        self._store = store
        self._node = node
        self._clock = clock
        self._processes = processes
        self._reconcile_seconds = reconcile_seconds
        self._node_id: NodeId | None = None

    async def run(self) -> None:
        """Follow the node until cancelled; what fails is tried again."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            while True:
                try:
                    await self.reconcile()
                except SpaceError as error:
                    log.warning("node.not_reconciled", error=error.message)
                except Exception as error:
                    log.error("node.not_reconciled", error=repr(error))
                await self._clock.sleep(self._reconcile_seconds)

    async def reconcile(self) -> None:
        """Compare rows and machines once, and repair the difference."""
        node_id = await self._find_node_id()
        before = await self._store.sandboxes.desired(node_id)
        report = await self._node.report()
        now = await self._store.sandboxes.desired(node_id)
        for sandbox_id in missing(before, report):
            await self._fail(MachineRef(sandbox_id, before[sandbox_id][0]), _MISSING, {"code": None})
        for machine in unwanted(report, now):
            await self._remove(machine)
        for machine in left_over(report, now):
            await self._release(machine)

    async def _find_node_id(self) -> NodeId:
        if self._node_id is None:
            self._node_id = (await self._node.facts()).id
        return self._node_id

    async def _follow(self) -> None:
        while True:
            try:
                async for observation in self._node.observations():
                    await self._take(observation)
            except Exception as error:  # the reconciler catches up with what is lost here
                log.warning("node.observations_interrupted", error=repr(error))
            await self._clock.sleep(_RETRY_SECONDS)

    async def _take(self, observation: MachineExited | SessionStatus) -> None:
        match observation:
            case MachineExited(ref=ref, exit=exit):
                await self._fail(ref, exit.reason, {"code": exit.code})
            case SessionStatus():
                await self._processes.apply_status(observation)

    async def _fail(self, ref: MachineRef, reason: str, data: Mapping[str, Any]) -> None:
        has_changed = await self._store.sandboxes.observe_exit(
            ref.sandbox_id, ref.generation, reason=reason, at=self._clock.now(), data=data
        )
        if has_changed:
            log.warning("machine.exited", sandbox=ref.sandbox_id, generation=ref.generation, reason=reason)
            await self._processes.lose_all(ref, reason)

    async def _remove(self, ref: MachineRef) -> None:
        log.warning("machine.unwanted", sandbox=ref.sandbox_id, generation=ref.generation)
        try:
            await self._node.remove(ref)
        except SpaceError as error:
            log.warning("machine.not_removed", sandbox=ref.sandbox_id, error=error.message)

    async def _release(self, ref: MachineRef) -> None:
        log.info("machine.left_over", sandbox=ref.sandbox_id, generation=ref.generation)
        try:
            await self._node.release(ref)
        except SpaceError as error:
            log.warning("machine.not_released", sandbox=ref.sandbox_id, error=error.message)


def missing(desired: Desired, report: Mapping[SandboxId, int]) -> list[SandboxId]:
    """Find sandboxes that should have a machine and have none; those that an operation is changing are its business."""
    return [
        sandbox_id
        for sandbox_id, (generation, state, held_by) in desired.items()
        if state in _WITH_MACHINE and held_by is None and report.get(sandbox_id) != generation
    ]


def unwanted(report: Mapping[SandboxId, int], desired: Desired) -> list[MachineRef]:
    """Find machines that no row wants, with all that ran there: of sandboxes that were deleted, or that failed.

    Those of a sandbox that an operation is changing are that operation's business.  Machines that wait for a sandbox
    are not in a node's report.  A machine newer than its row is left alone: the database was restored from a backup,
    and a person must decide.
    """
    return [ref for ref, state in _judged(report, desired) if state in (State.FAILED, State.DELETED)]


def left_over(report: Mapping[SandboxId, int], desired: Desired) -> list[MachineRef]:
    """Find machines that their sandbox has left behind: it was suspended, or has another machine by now.

    What ran there goes on elsewhere, so its sessions must not end with the machine.
    """
    return [ref for ref, state in _judged(report, desired) if state not in (State.FAILED, State.DELETED)]


def _judged(report: Mapping[SandboxId, int], desired: Desired) -> Iterator[tuple[MachineRef, State]]:
    """Yield the machines that should not be there, with the state of the sandbox."""
    for sandbox_id, generation in report.items():
        wanted, state, held_by = desired.get(sandbox_id, (generation, State.DELETED, None))
        is_over = generation == wanted and state not in (*_WITH_MACHINE, State.PENDING)
        if held_by is None and (generation < wanted or is_over):
            yield MachineRef(sandbox_id, generation), state

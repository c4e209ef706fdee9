"""Moments of machines: on this node's disk first, in the object store next."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from space.core.errors import SpaceError, Unsupported
from space.core.node import MachineRef
from space.core.snapshot import SnapshotOrder, SnapshotPlan, SnapshotResult
from space.host.failpoint import failpoint
from space.node.full_disk import full_disk_refuses
from space.node.live import LiveMachine
from space.node.machines import JOURNALS, MACHINE, Machines
from space.node.moment import Moment, SessionMark
from space.node.private_files import remove_tree
from space.node.record import Halt

log = structlog.get_logger(__name__)


class Checkpoints:
    """Makes moments and hands them to `Images`."""

    def __init__(self, machines: Machines, directory: Path) -> None:
        self._machines = machines
        self._parts = machines.parts
        self._directory = directory  #: where moments are put together

    def load(self) -> None:
        """Remove what a crash left half made."""
        remove_tree(self._directory)
        self._directory.mkdir(mode=0o700, parents=True)

    async def make(self, ref: MachineRef, order: SnapshotOrder) -> SnapshotPlan:
        """See `NodeClient.checkpoint`."""
        async with self._machines.changing(ref) as live:
            plan = await self._parts.images.planned(order)
            if plan is not None:
                return plan
            snapshot_format = self._format(live)
            staging = self._directory / order.snapshot_id
            await anyio.to_thread.run_sync(remove_tree, staging)
            with full_disk_refuses("a moment of a machine"):
                await anyio.to_thread.run_sync(lambda: staging.mkdir(mode=0o700))
            before = live.halt
            try:
                began = self._parts.clock.monotonic()
                taken_at, marks = await self._save(live, order, staging)
                took = self._parts.clock.monotonic() - began
                await self._parts.continuity.copy(marks, staging / JOURNALS)
                moment = Moment(
                    sandbox_id=ref.sandbox_id,
                    generation=ref.generation,
                    runtime=live.record.order.runtime,
                    snapshot_format=snapshot_format,
                    template_digest=live.record.order.template_digest,
                    resources=live.record.order.resources,
                    token=live.record.token,
                    taken_at=taken_at,
                    sessions=marks,
                )
                plan = await self._parts.images.plan(order, staging, moment.encode())
                failpoint("checkpoint.after_plan")
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._undo(live, before)
                raise
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(remove_tree, staging)
        log.info(
            "checkpoint.made",
            machine=live.record.machine_id,
            snapshot=order.snapshot_id,
            frozen=order.freeze,
            seconds=round(took, 4),
        )
        return replace(plan, checkpoint_ms=round(took * 1000))

    async def upload(self, order: SnapshotOrder) -> SnapshotResult:
        """See `NodeClient.upload`."""
        result = await self._parts.images.upload(order)
        for live in self._machines.live.values():
            if live.halt is not None and live.halt.frozen_for == order.snapshot_id:
                live.keeps_sessions = True  # its moment outlasts it, and with that its commands
        return result

    def _format(self, live: LiveMachine) -> str:
        capabilities = self._parts.capabilities.get(live.record.order.runtime)
        if capabilities is None or not capabilities.memory_snapshot or capabilities.snapshot_format is None:
            reason = capabilities.reasons.get("memory_snapshot") if capabilities is not None else None
            raise Unsupported(
                f"{live.record.order.runtime} cannot save a machine on this node: {reason or 'it does not say why'}",
                feature="memory_snapshot",
            )
        return capabilities.snapshot_format

    async def _save(
        self, live: LiveMachine, order: SnapshotOrder, staging: Path
    ) -> tuple[datetime, Sequence[SessionMark]]:
        """Write the machine down, while nobody talks to it; unless it is frozen it is in use again on return.

        Returns when that was, by the clock of the journals, and where these were.
        """
        usage = live.usage
        usage.require_quiet(order.quiet_since)
        async with usage.held(self._parts.settings.quiesce_seconds):
            usage.require_quiet(order.quiet_since)
            try:
                await live.leave()
                usage.require_quiet(order.quiet_since)  # it may have put something out meanwhile
                failpoint("checkpoint.before_freeze")
                if order.freeze:
                    await live.stand_still(Halt(frozen_for=order.snapshot_id))
                failpoint("checkpoint.after_freeze")
                taken_at, marks = self._parts.clock.now(), self._parts.continuity.marks(live.ref)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._parts.continuity.sync(marks))
                    tasks.create_task(live.machine.snapshot(staging / MACHINE))
                failpoint("checkpoint.after_image")
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from failures
            finally:
                live.come_back()
        return taken_at, marks

    async def _undo(self, live: LiveMachine, before: Halt | None) -> None:
        """Leave the machine as it was."""
        try:
            if before is None:
                await live.go_on()
            else:
                await live.stand_still(before)
        except (SpaceError, OSError) as error:
            log.error("checkpoint.undo_failed", machine=live.record.machine_id, error=str(error))

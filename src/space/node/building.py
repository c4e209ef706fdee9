"""Starting a machine so that any crash in between is repaired, and undoing a start that failed."""

from collections.abc import Awaitable, Callable, Sequence

import anyio
import anyio.to_thread
import structlog

from space.core.errors import SpaceError, Unsupported
from space.core.node import MachineOrder, MachineRef, MachineSpec
from space.core.ports import Machine, Runtime
from space.host.failpoint import failpoint
from space.host.process import ProcessFailed
from space.node.full_disk import full_disk_refuses
from space.node.generations import Phase
from space.node.parts import Parts
from space.node.record import MachineRecord, Origin, is_pooled

log = structlog.get_logger(__name__)

Prepare = Callable[[], Awaitable[None]]


class Builder:
    """Makes machines out of orders; what it cannot undo is left for the sweep."""

    def __init__(self, parts: Parts) -> None:
        self.directory = parts.settings.data_dir / "node" / "machines"
        self.leftover: list[MachineRecord] = []  #: failed starts that could not be undone
        self._parts = parts

    def spec(self, record: MachineRecord) -> MachineSpec:
        return record.spec(agent_dir=self._parts.settings.agent_dir, agent_port=self._parts.settings.agent_port)

    async def build(
        self, order: MachineOrder, origin: Origin | None = None, prepare: Prepare | None = None
    ) -> tuple[MachineRecord, Machine]:
        """Start a machine, or leave nothing: generation, slot, intent, machine, handle, in this order.

        `prepare` is awaited once the machine runs, before anybody talks to its agent.  A crash before it has returned
        leaves a half-built machine, which is swept.
        """
        runtime = self._runtime(order.runtime)
        template = await self._parts.templates.resolve(order.template_digest)
        if not is_pooled(order.ref):  # a machine without a sandbox has one generation, and no order for it comes late
            carries_on = origin is not None and origin.sandbox_id == order.ref.sandbox_id
            await self._parts.generations.record(order.ref, Phase.RESTORING if carries_on else Phase.SEEN)
        failpoint("ensure.after_generation")
        slot = await self._parts.slots.claim(disk_mib=order.resources.disk_mib)
        record = MachineRecord.make(self.directory, order, slot, template, origin)
        started: list[Machine] = []
        try:
            with full_disk_refuses("another machine"):
                await anyio.to_thread.run_sync(record.write_intent)
            failpoint("ensure.after_intent")
            snapshot = origin.path if origin is not None else None
            with anyio.CancelScope(shield=True):  # a start that is cut off half way would have to be searched for
                started.append(await runtime.start(self.spec(record), snapshot=snapshot))
            failpoint("ensure.after_start")
            if prepare is not None:
                await prepare()
                failpoint("ensure.after_prepare")
            with full_disk_refuses("another machine"):
                await anyio.to_thread.run_sync(record.write_handle, started[0].handle)
            failpoint("ensure.after_handle")
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._undo(record, started)
            raise
        return record, started[0]

    def _runtime(self, name: str) -> Runtime:
        try:
            return self._parts.runtimes[name]
        except KeyError:
            raise Unsupported(f"this node has no runtime {name}", feature="runtime") from None

    async def _undo(self, record: MachineRecord, started: Sequence[Machine]) -> None:
        try:
            for machine in started:
                await machine.stop()
            await self.forget(record)
        except (SpaceError, OSError, ProcessFailed) as error:
            log.error("machine.undo_failed", machine=record.machine_id, error=str(error))
            self.leftover.append(record)

    async def forget(self, record: MachineRecord) -> None:
        """Give back what the node itself made for a machine that is no more."""
        await self._parts.slots.release(record.slot)
        failpoint("bury.after_slot")
        await anyio.to_thread.run_sync(record.remove)

    def has_leftover(self, ref: MachineRef) -> bool:
        return any(record.ref == ref for record in self.leftover)

    async def forget_leftover(self) -> None:
        """Clean up after failed starts, once the runtimes have been swept."""
        for record in list(self.leftover):
            await self.forget(record)
            self.leftover.remove(record)

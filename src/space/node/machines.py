"""The machines of this node: ordered, changed, ended.

Whatever happens to the node, a machine is on disk in one of three states: no record; an intent without a handle,
which is swept; or a handle, which is re-adopted.  `Generations` fences all of it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import structlog

from space.core.errors import (
    CapacityUnavailable,
    GuestUnreachable,
    RuntimeFailed,
    StaleGeneration,
)
from space.core.ids import SandboxId
from space.core.node import MachineOrder, MachineRef
from space.core.snapshot import SnapshotRef
from space.host.failpoint import failpoint
from space.node.building import Prepare
from space.node.generations import Phase
from space.node.live import LiveMachine
from space.node.moment import Moment
from space.node.parts import Parts
from space.node.record import Halt, Origin
from space.node.roster import Building, Roster
from space.node.template_images import TemplateImages

log = structlog.get_logger(__name__)

MACHINE = "machine"  #: in a snapshot: what the runtime wrote
JOURNALS = "journals"  #: in a snapshot: those of the commands that ran
_CLOSE_SECONDS = 2.0  #: for the sessions of machines that have gone; after that their own task goes on with it
_CLEANUP_SECONDS = 60.0  #: for a failed start; after that its own task goes on with it


class Machines(Roster):
    """Starts, changes and ends machines; at most one a sandbox."""

    def __init__(self, parts: Parts, templates: TemplateImages) -> None:
        super().__init__(parts)
        self._templates = templates
        self._changing: dict[SandboxId, anyio.CancelScope] = {}

    # Ordering

    async def ensure(self, order: MachineOrder) -> None:
        """See `NodeClient.ensure`."""
        ref = order.ref
        self.parts.generations.admit(ref)
        older = self.building.get(ref.sandbox_id)
        if older is not None and older.order.ref < ref:
            older.scope.cancel()
        async with self.locked(ref.sandbox_id):
            self.parts.generations.admit(ref)
            live = self.live.get(ref.sandbox_id)
            if live is not None and live.ref == ref:
                await live.go_on()
                await self.await_agent(live)
            else:
                await self.start(order)

    async def start(self, order: MachineOrder) -> None:
        """Start a machine in place of older ones of its sandbox; the caller holds the lock."""
        building = Building(order)
        self.building[order.ref.sandbox_id] = building
        try:
            with building.scope:
                if order.restore is not None:
                    await self._restore(building, order.restore)
                else:
                    await self._replace(order)
                    await self._admit(building)
                    await self._boot(order)
        finally:
            self.building.pop(order.ref.sandbox_id, None)
        if building.scope.cancelled_caught:
            raise StaleGeneration(f"{order.ref.sandbox_id} was removed or replaced while it started")

    async def _replace(self, order: MachineOrder, *, carries_on: bool = False) -> None:
        """End the machine of an older generation."""
        live = self.live.get(order.ref.sandbox_id)
        if live is None:
            return
        if carries_on:  # suspended and not yet released: its sessions are those of the new one
            await self.parts.generations.record(order.ref, Phase.RESTORING)
            live.keeps_sessions = True
        await live.end()

    async def _admit(self, building: Building) -> None:
        order, settings = building.order, self.parts.settings
        async with self.sweeping:
            if self.builder.has_leftover(order.ref):
                await self.sweep_leftover()
            # Nothing is awaited between this and what it counts.
            if len(self) >= settings.max_machines:
                raise CapacityUnavailable(
                    f"this node holds {settings.max_machines} machines already", limit=settings.max_machines
                )
            available = self.memory_left_mib
            if order.resources.memory_mib > available:
                raise CapacityUnavailable(
                    f"{order.resources.memory_mib} MiB of memory asked for, {available} MiB left on this node",
                    available_mib=available,
                )
            building.is_admitted = True

    async def _boot(self, order: MachineOrder) -> None:
        """Start from an image of the booted template if there is one that works, else from nothing."""
        origin = await self._templates.find(order)
        if origin is not None:
            try:
                await self._bring_up(order, origin)
            except RuntimeFailed as error:
                log.warning("machine.template_image_failed", machine=order.ref.machine_id, error=error.message)
                await self._templates.drop(order)
            else:
                return
        await self._bring_up(order)
        self._templates.booted(order)

    async def _restore(self, building: Building, restore: SnapshotRef) -> None:
        order = building.order
        async with self.parts.images.open(restore) as image:
            moment = Moment.decode(image.meta)
            moment.require_fit(order, self.parts.capabilities.get(order.runtime))
            carries_on = moment.sandbox_id == order.ref.sandbox_id
            failpoint("restore.after_fetch")
            await self._replace(order, carries_on=carries_on)
            await self._admit(building)

            async def prepare() -> None:
                await self.parts.continuity.take_over(order.ref, moment, image.path / JOURNALS)

            origin = Origin(path=image.path / MACHINE, token=moment.token, sandbox_id=moment.sandbox_id)
            await self._bring_up(order, origin, prepare if carries_on else None)

    async def _bring_up(
        self, order: MachineOrder, origin: Origin | None = None, prepare: Prepare | None = None
    ) -> None:
        started = self.parts.clock.monotonic()
        live = self.adopt(*await self.builder.build(order, origin, prepare))
        live.keeps_sessions = live.record.carries_on  # until it is up: a start that fails loses nobody's stream
        try:
            await self.await_agent(live)
        except BaseException:
            with anyio.move_on_after(_CLEANUP_SECONDS, shield=True):
                await live.end()
            raise
        seconds = round(self.parts.clock.monotonic() - started, 4)
        log.info(
            "machine.started",
            machine=live.record.machine_id,
            runtime=order.runtime,
            seconds=seconds,
            restored=origin is not None,
        )

    async def await_agent(self, live: LiveMachine) -> None:
        """Return once the agent has answered and knows who it is, and that is on disk.

        Raises:
            RuntimeFailed: the machine ended first, or did not answer in time.
        """
        deadline = self.parts.settings.create_deadline
        if not await live.answers(deadline):
            reason = "ended before its agent answered" if live.has_exited else f"did not answer in {deadline:g} s"
            raise RuntimeFailed(f"the machine of {live.ref.sandbox_id} {reason}")
        if live.record.old_token is not None:
            await live.become(await live.guest())
        failpoint("ensure.after_ready")
        if not live.record.is_pooled:
            await self.parts.generations.record(live.ref, Phase.UP)
        live.keeps_sessions = False

    # Changing

    @asynccontextmanager
    async def changing(self, ref: MachineRef) -> AsyncIterator[LiveMachine]:
        """Hold a machine for a change; raises `StaleGeneration` if it is removed meanwhile."""
        async with self.locked(ref.sandbox_id):
            live = self.get(ref)
            with anyio.CancelScope() as scope:
                self._changing[ref.sandbox_id] = scope
                try:
                    yield live
                finally:
                    del self._changing[ref.sandbox_id]
            if scope.cancelled_caught:
                raise StaleGeneration(f"{ref.sandbox_id} was removed meanwhile")

    async def pause(self, ref: MachineRef) -> None:
        """See `NodeClient.pause`."""
        async with self.changing(ref) as live, live.usage.held(self.parts.settings.quiesce_seconds):
            await live.stand_still(Halt())
            log.info("machine.paused", machine=live.record.machine_id)

    async def resume(self, ref: MachineRef) -> None:
        """See `NodeClient.resume`."""
        async with self.changing(ref) as live:
            await live.go_on()
            if not await live.answers(self.parts.settings.guest_deadline):
                raise GuestUnreachable(f"the agent of {ref.sandbox_id} does not answer after the pause; try again")
            log.info("machine.resumed", machine=live.record.machine_id)

    # Ending

    async def release(self, ref: MachineRef) -> None:
        """See `NodeClient.release`."""
        self.parts.generations.check(ref)
        async with self.locked(ref.sandbox_id):
            self.parts.generations.check(ref)
            live = self.live.get(ref.sandbox_id)
            if live is not None and live.ref == ref:
                live.keeps_sessions = True
            await self.parts.generations.record(ref, Phase.RELEASED)
            failpoint("release.after_record")
            if live is not None:
                await live.end()
        failpoint("release.after_end")

    async def remove(self, ref: MachineRef, *, grace: float) -> None:
        """See `NodeClient.remove`."""
        entry = self.parts.generations.get(ref.sandbox_id)
        if entry is not None and entry.generation > ref.generation:
            self.parts.generations.check(ref)
        try:
            await self.parts.generations.record(ref, Phase.GONE)
            failpoint("remove.after_tombstone")
        finally:
            # On a full disk too: what is removed makes room, and the caller tries again.
            self._cancel(ref.sandbox_id)
            async with self.locked(ref.sandbox_id):
                live = self.live.get(ref.sandbox_id)
                if live is not None:
                    live.keeps_sessions = False
                    await live.end(grace=grace)
                await self._lose_sessions(ref.sandbox_id)
        failpoint("remove.after_end")

    def _cancel(self, sandbox_id: SandboxId) -> None:
        """Break off what is being done to a sandbox's machine."""
        building = self.building.get(sandbox_id)
        if building is not None:
            building.scope.cancel()
        if sandbox_id in self._changing:
            self._changing[sandbox_id].cancel()

    async def _lose_sessions(self, sandbox_id: SandboxId) -> None:
        """End what a suspended sandbox has left open; on a full disk that goes on in the background."""
        if not self.parts.sessions.of(sandbox_id) or self.tasks is None:
            return
        is_done = asyncio.Event()

        async def lose() -> None:
            await self.parts.sessions.lost_but(sandbox_id, (), "stopped")
            is_done.set()

        self.tasks.start_soon(lose)
        with anyio.move_on_after(_CLOSE_SECONDS):
            await is_done.wait()

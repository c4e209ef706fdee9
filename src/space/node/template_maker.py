"""Makes the images of booted templates: in the background, one at a time, while nothing else starts."""

import os
from dataclasses import replace

import anyio
import anyio.to_thread
import structlog

from space.core.errors import CapacityUnavailable, SpaceError
from space.core.ids import PooledId, make_id
from space.core.node import MachineOrder
from space.core.ports import Clock
from space.node.machines import Machines
from space.node.private_files import remove_tree
from space.node.record import pooled_ref
from space.node.template_images import MACHINE, TemplateImages

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 0.5  #: between two looks whether anything is starting
_CLEANUP_SECONDS = 60.0


class TemplateImageMaker:
    """Boots a machine that nobody gets, saves it, ends it."""

    def __init__(self, machines: Machines, templates: TemplateImages, clock: Clock, *, idle_seconds: float) -> None:
        self.making: PooledId | None = None  #: this machine waits for no sandbox
        self._machines = machines
        self._templates = templates
        self._clock = clock
        self._idle_seconds = idle_seconds

    async def run(self) -> None:
        """Make what is wanted, for ever."""
        while True:
            order = await self._templates.next_wanted()
            await self._until_idle()
            try:
                await self._make(order)
            except CapacityUnavailable as error:  # the next machine that is booted asks again
                log.info("template_image.no_room", template=order.template_digest, error=error.message)
            except (SpaceError, OSError) as error:
                log.warning("template_image.failed", template=order.template_digest, error=str(error))
                self._templates.refuse(order)

    async def _until_idle(self) -> None:
        busy_at = self._clock.monotonic()
        while self._clock.monotonic() - busy_at < self._idle_seconds:
            await self._clock.sleep(min(_LOOK_SECONDS, self._idle_seconds))
            if self._machines.building:
                busy_at = self._clock.monotonic()

    async def _make(self, order: MachineOrder) -> None:
        if self._machines.memory_left_mib < 2 * order.resources.memory_mib:
            raise CapacityUnavailable("a sandbox may need the memory that is left")
        now = int(self._clock.now().timestamp() * 1000)
        self.making = PooledId(make_id("mch", unix_ms=now, randomness=os.urandom(10)))
        ref = pooled_ref(self.making)
        aside = self._templates.directory / f".{self.making}"
        try:
            async with self._machines.locked(ref.sandbox_id):
                await self._machines.start(replace(order, ref=ref, env={}, restore=None))
                live = self._machines.live[ref.sandbox_id]
                await (await live.guest()).prewarm()
                await live.leave()
                await anyio.to_thread.run_sync(lambda: aside.mkdir(mode=0o700, parents=True))
                await live.machine.snapshot(aside / MACHINE)
                await self._templates.keep(order, aside, live.record.token)
            log.info("template_image.made", template=order.template_digest, runtime=order.runtime)
        finally:
            with anyio.move_on_after(_CLEANUP_SECONDS, shield=True):
                found = self._machines.live.get(ref.sandbox_id)
                if found is not None:
                    await found.end()
                await anyio.to_thread.run_sync(remove_tree, aside)
            self.making = None

"""Places for machines, prepared ahead: network, disk and the name of a cgroup.

Making a network takes tens of milliseconds, so it happens in the background and in batches; claiming one is an
assignment in memory.  Which slot a machine has is in its record on disk; at start all others are torn down.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import anyio
import structlog

from space.core.errors import CapacityUnavailable
from space.core.node import Slot
from space.host.process import ProcessFailed

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 5.0  #: after a refill that failed


class SlotNetwork(Protocol):
    """A prepared network, as `space.host.network` makes it."""

    @property
    def index(self) -> int: ...
    @property
    def netns(self) -> str: ...
    @property
    def gateway_netns(self) -> str: ...
    @property
    def guest_ip(self) -> str: ...
    @property
    def gateway_ip(self) -> str: ...
    @property
    def prefix_length(self) -> int: ...


class Networks(Protocol):
    """`space.host.network.Network`."""

    async def open(self) -> None: ...
    async def prepare(self, count: int) -> None: ...
    async def claim(self) -> SlotNetwork: ...
    async def release(self, index: int) -> None: ...
    async def sweep(self, keep: Collection[int]) -> Sequence[int]: ...
    async def trim(self, count: int) -> None: ...


class FileStores(Protocol):
    """`space.host.filestore.FileStores`."""

    async def create(self, index: int, disk_mib: int) -> Path: ...
    async def remove(self, index: int) -> None: ...
    async def sweep(self, keep: Collection[int]) -> Sequence[int]: ...


class Cgroups(Protocol):
    """`space.host.cgroup.Cgroups`; its methods are a few file operations each."""

    def remove(self, path: str) -> None: ...
    def sweep(self, keep: Collection[str]) -> Sequence[str]: ...


class Slots:
    """Claims, releases and refills slots."""

    def __init__(
        self,
        *,
        networks: Networks,
        filestores: FileStores,
        cgroups: Cgroups,
        cgroup_of: Callable[[int], str],
        ahead: int = 4,
        disk_mib: int = 2048,
    ) -> None:
        self._networks = networks
        self._filestores = filestores
        self._cgroups = cgroups
        self._cgroup_of = cgroup_of
        self._ahead = ahead
        self._disk_mib = disk_mib  #: size of the disks that are made ahead; others are made when claimed
        self._ready: list[Slot] = []
        self._claimed: dict[int, Slot] = {}
        self._wanted = asyncio.Event()
        self._gate = asyncio.Lock()
        self._busy = 0
        self._has_doubts = True  #: whether a network may be left that belongs to no slot

    async def restore(self, claimed: Collection[Slot]) -> None:
        """Take over the slots that machines have from an earlier life of the node; tear all others down."""
        await self._networks.open()
        self._claimed = {slot.index: slot for slot in claimed}
        await self.sweep()

    async def sweep(self) -> None:
        """Remove networks, disks and cgroups of this instance that belong to no slot; not while one is being made."""
        async with self._gate:
            if self._busy:
                return
            slots = [*self._claimed.values(), *self._ready]
            indexes = {slot.index for slot in slots}
            cgroups = await anyio.to_thread.run_sync(self._cgroups.sweep, {slot.cgroup for slot in slots})
            filestores = await self._filestores.sweep(indexes)
            if self._has_doubts:
                await self._networks.sweep(indexes)  # looks at every network, so only when one may be broken
                self._has_doubts = False
            await self._networks.trim(self._ahead)  # a burst of machines leaves as many networks behind
        if cgroups or filestores:
            log.warning("slots.swept", cgroups=list(cgroups), filestores=list(filestores))

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        """Hold off sweeps while a slot is neither ready nor claimed."""
        async with self._gate:
            self._busy += 1
        try:
            yield
        except BaseException:
            self._has_doubts = True
            raise
        finally:
            self._busy -= 1

    async def run(self) -> None:
        """Keep `ahead` slots ready."""
        while True:
            missing = self._ahead - len(self._ready)
            if missing <= 0:
                self._wanted.clear()
                await self._wanted.wait()
                continue
            try:
                async with self._working():
                    await self._networks.prepare(missing)
                    self._ready.append(await self._make(self._disk_mib))
            except Exception as error:  # whatever a system tool answered: machines that run need no new slots
                log.error("slots.refill_failed", error=repr(error))
                await anyio.sleep(_RETRY_SECONDS)

    async def claim(self, *, disk_mib: int) -> Slot:
        """Return a slot of one's own; it is empty.  Raises `InsufficientStorage` or `CapacityUnavailable`."""
        self._wanted.set()
        if disk_mib == self._disk_mib and self._ready:
            slot = self._ready.pop()
            self._claimed[slot.index] = slot
            return slot
        async with self._working():
            slot = await self._make(disk_mib)
            self._claimed[slot.index] = slot
            return slot

    async def _make(self, disk_mib: int) -> Slot:
        try:
            network = await self._networks.claim()
        except ProcessFailed as error:
            raise CapacityUnavailable("a network for the sandbox could not be made; see the node's log") from error
        try:
            filestore = await self._filestores.create(network.index, disk_mib)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._networks.release(network.index)
            raise
        return Slot(
            index=network.index,
            netns=network.netns,
            gateway_netns=network.gateway_netns,
            guest_ip=network.guest_ip,
            gateway_ip=network.gateway_ip,
            prefix_length=network.prefix_length,
            filestore=filestore,
            cgroup=self._cgroup_of(network.index),
        )

    async def release(self, slot: Slot) -> None:
        """Give a slot back: its disk goes, its network is recycled.  Idempotent; what fails is left to the sweep."""
        if self._claimed.get(slot.index) is not slot:  # given back before; by now another machine may have its number
            return
        del self._claimed[slot.index]
        async with self._working():
            await anyio.to_thread.run_sync(self._cgroups.remove, slot.cgroup)
            await self._filestores.remove(slot.index)
            await self._networks.release(slot.index)

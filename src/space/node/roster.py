"""Which machines there are: on their way up, and running; each is looked after until it is buried."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
import anyio.abc
import structlog

from space.core.errors import InsufficientStorage, NotFound
from space.core.ids import SandboxId
from space.core.node import Exit, MachineOrder, MachineRef
from space.core.ports import Machine, MachineExited
from space.host.failpoint import failpoint
from space.node.building import Builder
from space.node.generations import Phase
from space.node.live import LiveMachine
from space.node.parts import Parts
from space.node.record import Halt, MachineRecord

log = structlog.get_logger(__name__)

_RETRY_SECONDS = (1.0, 30.0)  #: first and longest pause after a burial that failed


@dataclass(slots=True, eq=False)
class Building:
    """A machine on its way up."""

    order: MachineOrder
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    is_admitted: bool = False  #: it counts


class Roster:
    """The machines of this node; at most one a sandbox."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.builder = Builder(parts)
        self.live: dict[SandboxId, LiveMachine] = {}
        self.building: dict[SandboxId, Building] = {}
        self.sweeping = asyncio.Lock()
        self.tasks: anyio.abc.TaskGroup | None = None
        self.sweep_leftover = self.builder.forget_leftover  #: set by `Upkeep`
        self._locks: dict[SandboxId, tuple[asyncio.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._orders())

    def _orders(self) -> Mapping[SandboxId, MachineOrder]:
        orders = {key: building.order for key, building in self.building.items() if building.is_admitted}
        orders.update({key: live.record.order for key, live in self.live.items()})
        return orders

    @property
    def memory_mib(self) -> int:
        """Memory promised to machines."""
        return sum(order.resources.memory_mib for order in self._orders().values())

    @property
    def memory_left_mib(self) -> int:
        """Memory that may still be promised."""
        return max(int(self.parts.memory_mib * self.parts.settings.memory_overcommit) - self.memory_mib, 0)

    def report(self) -> Mapping[SandboxId, int]:
        return {
            sandbox_id: live.ref.generation
            for sandbox_id, live in self.live.items()
            if not live.has_exited and not live.record.is_pooled
        }

    def get(self, ref: MachineRef) -> LiveMachine:
        """Return a machine that runs; raises `StaleGeneration` or `NotFound`."""
        self.parts.generations.check(ref)
        live = self.live.get(ref.sandbox_id)
        if live is None or live.ref != ref or live.has_exited:
            raise NotFound(f"no machine of {ref.sandbox_id} in generation {ref.generation} runs on this node")
        return live

    def adopt(self, record: MachineRecord, machine: Machine, halt: Halt | None = None) -> LiveMachine:
        """Keep a machine that runs, and take care of it."""
        live = LiveMachine(
            record,
            machine,
            sessions=self.parts.sessions,
            settings=self.parts.settings,
            clock=self.parts.clock,
            bury=self._bury,
        )
        if halt is not None:
            live.found_still(halt)
        if record.carries_on:
            self.parts.sessions.carry(record.ref)
        self.live[record.ref.sandbox_id] = live
        if self.tasks is None:
            raise RuntimeError("the node does not run")
        self.tasks.start_soon(self._supervise, live)
        return live

    async def _supervise(self, live: LiveMachine) -> None:
        """Run a machine's task; what goes wrong in it must not take the node along."""
        pause, longest = _RETRY_SECONDS
        while True:
            try:
                await live.run()
                return
            except Exception:
                log.exception("machine.task_failed", machine=live.record.machine_id)
            await anyio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _bury(self, live: LiveMachine, exit: Exit) -> None:
        ref = live.ref
        entry = self.parts.generations.get(ref.sandbox_id)
        was_up = entry is not None and entry.generation == ref.generation and entry.phase is Phase.UP
        if was_up and not live.is_asked_to_end and not live.is_being_bound:
            self.parts.observations.put(MachineExited(ref=ref, exit=exit))
            with suppress(InsufficientStorage):  # burying it makes room
                await self.parts.generations.record(ref, Phase.ENDED)
        await live.machine.stop()
        failpoint("bury.after_stop")
        await self.builder.forget(live.record)
        if self.live.get(ref.sandbox_id) is live:
            del self.live[ref.sandbox_id]
        log.info("machine.ended", machine=live.record.machine_id, reason=exit.reason, asked=live.is_asked_to_end)

    @asynccontextmanager
    async def locked(self, sandbox_id: SandboxId) -> AsyncIterator[None]:
        """Hold the sandbox's lock; locks that nobody wants are dropped."""
        lock, users = self._locks.get(sandbox_id, (asyncio.Lock(), 0))
        self._locks[sandbox_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            _, users = self._locks[sandbox_id]
            if users == 1:
                del self._locks[sandbox_id]
            else:
                self._locks[sandbox_id] = (lock, users - 1)

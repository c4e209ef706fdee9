"""The machines of this node: ordered, found again after a restart, watched, removed.

Whatever happens to the node, a machine is on disk in one of three states: no record; an intent without a handle,
which is swept; or a handle, which is re-adopted.  `Generations` fences all of it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from space.core.errors import CapacityUnavailable, InsufficientStorage, NotFound, RuntimeFailed, StaleGeneration
from space.core.ids import SandboxId
from space.core.node import Exit, MachineOrder, MachineRef
from space.core.ports import Machine, MachineExited
from space.host.failpoint import failpoint
from space.node.building import Builder
from space.node.generations import Phase
from space.node.live import LiveMachine
from space.node.parts import Parts
from space.node.record import MachineRecord, remove_tree

log = structlog.get_logger(__name__)

_CLOSE_SECONDS = 2.0  #: for the sessions of machines that have gone; after that their own task goes on with it
_CLEANUP_SECONDS = 60.0  #: for a failed start; after that its own task goes on with it
_RETRY_SECONDS = (1.0, 30.0)  #: first and longest pause after a burial that failed


@dataclass(slots=True, eq=False)
class _Building:
    """A machine on its way up."""

    order: MachineOrder
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Machines:
    """Starts, keeps and ends machines; at most one a sandbox."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._builder = Builder(parts)
        self._live: dict[SandboxId, LiveMachine] = {}
        self._building: dict[SandboxId, _Building] = {}
        self._locks: dict[SandboxId, tuple[asyncio.Lock, int]] = {}
        self._sweeping = asyncio.Lock()
        self._tasks: anyio.abc.TaskGroup | None = None

    # What there is

    def __len__(self) -> int:
        return len(self._live.keys() | self._building.keys())

    @property
    def memory_mib(self) -> int:
        """Memory promised to machines."""
        orders = {sandbox_id: building.order for sandbox_id, building in self._building.items()}
        orders.update({sandbox_id: live.record.order for sandbox_id, live in self._live.items()})
        return sum(order.resources.memory_mib for order in orders.values())

    def report(self) -> Mapping[SandboxId, int]:
        return {sandbox_id: live.ref.generation for sandbox_id, live in self._live.items() if not live.has_exited}

    def get(self, ref: MachineRef) -> LiveMachine:
        """Return a machine that runs; raises `StaleGeneration` or `NotFound`."""
        self._parts.generations.check(ref)
        live = self._live.get(ref.sandbox_id)
        if live is None or live.ref != ref or live.has_exited:
            raise NotFound(f"no machine of {ref.sandbox_id} in generation {ref.generation} runs on this node")
        return live

    # Ordering

    async def ensure(self, order: MachineOrder) -> None:
        """See `NodeClient.ensure`."""
        ref = order.ref
        self._parts.generations.admit(ref)
        older = self._building.get(ref.sandbox_id)
        if older is not None and older.order.ref < ref:
            older.scope.cancel()
        async with self._locked(ref.sandbox_id):
            self._parts.generations.admit(ref)
            live = self._live.get(ref.sandbox_id)
            if live is not None and live.ref != ref:
                await live.end()
                live = None
            if live is not None:
                await self._await_agent(live)
                await self._parts.generations.record(ref, Phase.UP)
                return
            building = _Building(order)
            with building.scope:
                async with self._sweeping:
                    if self._builder.has_leftover(ref):
                        await self._sweep_machines()
                    self._admit(order)  # nothing is awaited between this and what it counts
                    self._building[ref.sandbox_id] = building
                try:
                    await self._build(order)
                finally:
                    self._building.pop(ref.sandbox_id, None)
            if building.scope.cancelled_caught:
                raise StaleGeneration(f"{ref.sandbox_id} was removed or replaced while it started")

    def _admit(self, order: MachineOrder) -> None:
        settings = self._parts.settings
        if len(self) >= settings.max_machines:
            raise CapacityUnavailable(
                f"this node holds {settings.max_machines} machines already", limit=settings.max_machines
            )
        available = int(self._parts.memory_mib * settings.memory_overcommit) - self.memory_mib
        if order.resources.memory_mib > available:
            raise CapacityUnavailable(
                f"{order.resources.memory_mib} MiB of memory asked for, {max(available, 0)} MiB left on this node",
                available_mib=max(available, 0),
            )

    async def _build(self, order: MachineOrder) -> None:
        ref, started = order.ref, self._parts.clock.monotonic()
        live = self._adopt(*await self._builder.build(order))
        try:
            await self._await_agent(live)
        except BaseException:
            with anyio.move_on_after(_CLEANUP_SECONDS, shield=True):
                await live.end()
            raise
        failpoint("ensure.after_ready")
        await self._parts.generations.record(ref, Phase.UP)
        seconds = round(self._parts.clock.monotonic() - started, 4)
        log.info("machine.started", machine=ref.machine_id, runtime=order.runtime, seconds=seconds)

    async def _await_agent(self, live: LiveMachine) -> None:
        """Return once the agent has answered; raises `RuntimeFailed` if the machine ends first, or in time neither."""
        deadline = self._parts.settings.create_deadline
        if not await live.answers(deadline):
            reason = "ended before its agent answered" if live.has_exited else f"did not answer in {deadline:g} s"
            raise RuntimeFailed(f"the machine of {live.ref.sandbox_id} {reason}")

    def _adopt(self, record: MachineRecord, machine: Machine) -> LiveMachine:
        live = LiveMachine(
            record,
            machine,
            sessions=self._parts.sessions,
            settings=self._parts.settings,
            clock=self._parts.clock,
            bury=self._bury,
        )
        self._live[record.ref.sandbox_id] = live
        if self._tasks is None:
            raise RuntimeError("the node does not run")
        self._tasks.start_soon(self._supervise, live)
        return live

    # Ending

    async def remove(self, ref: MachineRef, *, grace: float) -> None:
        """See `NodeClient.remove`."""
        entry = self._parts.generations.get(ref.sandbox_id)
        if entry is not None and entry.generation > ref.generation:
            self._parts.generations.check(ref)
        try:
            await self._parts.generations.record(ref, Phase.GONE)
            failpoint("remove.after_tombstone")
        finally:
            # On a full disk too: what is removed makes room, and the caller tries again.
            building = self._building.get(ref.sandbox_id)
            if building is not None:
                building.scope.cancel()
            async with self._locked(ref.sandbox_id):
                live = self._live.get(ref.sandbox_id)
                if live is not None:
                    await live.end(grace=grace)
        failpoint("remove.after_end")

    async def _supervise(self, live: LiveMachine) -> None:
        """Run a machine's task; what goes wrong in it must not take the node along."""
        pause, longest = _RETRY_SECONDS
        while True:
            try:
                await live.run()
                return
            except Exception:
                log.exception("machine.task_failed", machine=live.ref.machine_id)
            await anyio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _bury(self, live: LiveMachine, exit: Exit) -> None:
        ref = live.ref
        entry = self._parts.generations.get(ref.sandbox_id)
        was_up = entry is not None and entry.generation == ref.generation and entry.phase is Phase.UP
        if was_up and not live.is_asked_to_end:
            self._parts.observations.put(MachineExited(ref=ref, exit=exit))
            with suppress(InsufficientStorage):  # burying it makes room
                await self._parts.generations.record(ref, Phase.ENDED)
        await live.machine.stop()
        failpoint("bury.after_stop")
        await self._builder.forget(live.record)
        if self._live.get(ref.sandbox_id) is live:
            del self._live[ref.sandbox_id]
        log.info("machine.ended", machine=ref.machine_id, reason=exit.reason, asked=live.is_asked_to_end)

    # After a restart, and every minute

    async def recover(self, tasks: anyio.abc.TaskGroup) -> None:
        """Find the machines of an earlier life of the node, and remove what is left of the others."""
        self._tasks = tasks
        directory = self._builder.directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        records = [record for path in directory.iterdir() if (record := MachineRecord.read(path)) is not None]
        async with anyio.create_task_group() as recovering:
            for record in records:
                recovering.start_soon(self._readopt, record)
        try:
            await self._sweep_runtimes()
        except Exception:  # what is left of one machine must not keep all others down; the next sweep tries again
            log.exception("machines.sweep_failed")
        await self._parts.slots.restore([live.record.slot for live in self._live.values()])
        await self._sweep_directories()
        is_closed = asyncio.Event()
        tasks.start_soon(self._close_sessions, is_closed)
        with anyio.move_on_after(_CLOSE_SECONDS):
            await is_closed.wait()

    async def _close_sessions(self, done: asyncio.Event) -> None:
        """End the sessions whose machines have gone; on a full disk that takes until there is room."""
        for ref in self._parts.sessions.machines():
            live = self._live.get(ref.sandbox_id)
            if live is None or live.ref != ref:
                try:
                    await self._parts.sessions.lost(ref, "runtime_exited")
                except (OSError, ValueError):
                    log.exception("sessions.not_closed", machine=ref.machine_id)
        done.set()

    async def _readopt(self, record: MachineRecord) -> None:
        ref, parts = record.ref, self._parts
        entry = parts.generations.get(ref.sandbox_id)
        runtime = parts.runtimes.get(record.order.runtime)
        is_current = entry is not None and entry.generation == ref.generation and entry.phase in (Phase.SEEN, Phase.UP)
        if record.handle is None or runtime is None or not is_current:
            log.info("machine.dropped", machine=ref.machine_id, is_current=is_current, built=record.handle is not None)
            return
        reason = "runtime_exited"
        try:
            machine = await runtime.recover(record.handle, self._builder.spec(record))
        except Exception:  # it is swept; the others go on
            log.exception("machine.recover_failed", machine=ref.machine_id)
            machine, reason = None, "recover_failed"
        if machine is not None:
            log.info("machine.readopted", machine=ref.machine_id)
            self._adopt(record, machine)
        elif entry is not None and entry.phase is Phase.UP:
            log.info("machine.found_ended", machine=ref.machine_id, reason=reason)
            parts.observations.put(MachineExited(ref=ref, exit=Exit(reason=reason)))
            with suppress(InsufficientStorage):  # sweeping what is left of it makes room
                await parts.generations.record(ref, Phase.ENDED)

    async def sweep(self) -> None:
        """Remove what belongs to no machine; starts wait for it."""
        async with self._sweeping:
            await self._sweep_machines()
            await self._sweep_directories()
        await self._parts.slots.sweep()

    def _wanted(self) -> frozenset[str]:
        """Return the ids of the machines that run or are on their way up."""
        refs = [*(live.ref for live in self._live.values()), *(b.order.ref for b in self._building.values())]
        return frozenset(ref.machine_id for ref in refs)

    async def _sweep_machines(self) -> None:
        await self._sweep_runtimes()
        await self._builder.forget_leftover()

    async def _sweep_runtimes(self) -> None:
        keep = self._wanted()
        for name, runtime in self._parts.runtimes.items():
            removed = await runtime.sweep(keep)
            if removed:
                log.warning("machines.swept", runtime=name, machines=list(removed))

    async def _sweep_directories(self) -> None:
        keep = self._wanted() | {record.ref.machine_id for record in self._builder.leftover}
        for path in self._builder.directory.iterdir():
            if path.name not in keep:
                try:
                    await anyio.to_thread.run_sync(remove_tree, path)
                except OSError as error:
                    log.error("machine.directory_not_swept", machine=path.name, error=str(error))
                else:
                    log.info("machine.directory_swept", machine=path.name)

    @asynccontextmanager
    async def _locked(self, sandbox_id: SandboxId) -> AsyncIterator[None]:
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

"""After a restart and every minute: machines that run are found again, and what belongs to none is removed."""

import asyncio
from collections.abc import Collection
from contextlib import suppress

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from space.core.errors import InsufficientStorage
from space.core.node import Exit, MachineHandle, MachineRef
from space.core.ports import Machine, MachineExited
from space.node.generations import STARTING, Phase
from space.node.machines import Machines
from space.node.private_files import remove_tree
from space.node.record import Halt, MachineRecord

log = structlog.get_logger(__name__)

_CLOSE_SECONDS = 2.0  #: for the sessions of machines that have gone; after that their own task goes on with it


class Upkeep:
    """Keeps what is on disk and in the kernel, and what the node knows of, the same."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._parts = machines.parts
        self._builder = machines.builder
        self._reasons: dict[MachineRef, str] = {}  #: why machines of an earlier life have gone
        machines.sweep_leftover = self._sweep_machines

    async def recover(self, tasks: anyio.abc.TaskGroup) -> None:
        """Find the machines of an earlier life of the node, and remove what is left of the others."""
        self._machines.tasks = tasks
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
        await self._parts.slots.restore([live.record.slot for live in self._machines.live.values()])
        await self._sweep_directories()
        is_closed = asyncio.Event()
        tasks.start_soon(self._close_sessions, is_closed)
        with anyio.move_on_after(_CLOSE_SECONDS):
            await is_closed.wait()

    async def _close_sessions(self, done: asyncio.Event) -> None:
        """End the sessions whose machines have gone; on a full disk that takes until there is room."""
        for ref in self._parts.sessions.machines():
            live = self._machines.live.get(ref.sandbox_id)
            is_waiting = live is None and self._parts.generations.keeps_sessions(ref.sandbox_id)
            if not is_waiting and (live is None or live.ref != ref):
                try:
                    await self._parts.sessions.lost(ref, self._reasons.get(ref, "runtime_exited"))
                except (OSError, ValueError):
                    log.exception("sessions.not_closed", machine=ref.machine_id)
        done.set()

    def _is_wanted(self, record: MachineRecord) -> bool:
        """Whether a machine may be taken up again."""
        if record.handle is None or record.order.runtime not in self._parts.runtimes:
            return False
        if record.is_pooled:
            return record.is_ready
        entry = self._parts.generations.get(record.ref.sandbox_id)
        is_current = entry is not None and entry.generation == record.ref.generation
        return entry is not None and is_current and entry.phase in (*STARTING, Phase.UP)

    async def _readopt(self, record: MachineRecord) -> None:
        if not self._is_wanted(record):
            log.info("machine.dropped", machine=record.machine_id, built=record.handle is not None)
            return
        entry = self._parts.generations.get(record.ref.sandbox_id)
        is_up = entry is not None and entry.phase is Phase.UP
        halt, reason = record.read_halt(), "runtime_exited" if record.is_of_this_boot else "node_lost"
        machine: Machine | None = None
        try:
            if record.handle is not None and record.is_of_this_boot:
                machine = await self._find(record, record.handle, halt)
        except Exception:  # it is swept; the others go on
            log.exception("machine.recover_failed", machine=record.machine_id)
            reason = "recover_failed"
        if machine is not None:
            live = self._machines.adopt(record, machine, halt)
            live.keeps_sessions = record.carries_on and not is_up
            log.info("machine.readopted", machine=record.machine_id, halted=halt is not None)
        elif is_up and not record.is_pooled:
            log.info("machine.found_ended", machine=record.machine_id, reason=reason)
            self._reasons[record.ref] = reason
            self._parts.observations.put(MachineExited(ref=record.ref, exit=Exit(reason=reason)))
            with suppress(InsufficientStorage):  # sweeping what is left of it makes room
                await self._parts.generations.record(record.ref, Phase.ENDED)

    async def _find(self, record: MachineRecord, handle: MachineHandle, halt: Halt | None) -> Machine | None:
        machine = await self._parts.runtimes[record.order.runtime].recover(handle, self._builder.spec(record))
        if machine is not None and halt is not None:
            await machine.pause()  # the node may have died after the note and before the deed
        return machine

    # Every minute

    async def sweep(self) -> None:
        """Remove what belongs to no machine; starts wait for it."""
        async with self._machines.sweeping:
            await self._sweep_machines()
            await self._sweep_directories()
        await self._parts.slots.sweep()

    def _wanted(self) -> frozenset[str]:
        """Return the ids of the machines that run or are on their way up."""
        live = [live.record.machine_id for live in self._machines.live.values()]
        admitted = [each.order.ref.machine_id for each in self._machines.building.values() if each.is_admitted]
        return frozenset([*live, *admitted])

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
        keep: Collection[str] = self._wanted() | {record.machine_id for record in self._builder.leftover}
        for path in self._builder.directory.iterdir():
            if path.name not in keep:
                try:
                    await anyio.to_thread.run_sync(remove_tree, path)
                except OSError as error:
                    log.error("machine.directory_not_swept", machine=path.name, error=str(error))
                else:
                    log.info("machine.directory_swept", machine=path.name)

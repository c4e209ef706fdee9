"""The node: `NodeClient` for the machines of this host, in this process."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import aclosing, asynccontextmanager, suppress

import anyio
import anyio.to_thread
import structlog

from space.core.command import Pty
from space.core.errors import FailedPrecondition, SpaceError
from space.core.ids import NodeId, PooledId, ProcessId, SandboxId, SessionId, SnapshotId
from space.core.journal import JournalRecord, Trimmed
from space.core.node import Capabilities, MachineOrder, MachineRef, NodeFacts
from space.core.pool import PoolOrder
from space.core.ports import Clock, MachineExited, ProcessOrder, Runtime, SessionStatus, Templates
from space.core.snapshot import SnapshotOrder, SnapshotPlan, SnapshotResult
from space.node import facts
from space.node.checkpoints import Checkpoints
from space.node.continuity import Continuity
from space.node.generations import Generations
from space.node.guest import Guest
from space.node.images import Images
from space.node.journal.folder import JournalFolder
from space.node.machines import Machines
from space.node.node_files import NodeFiles
from space.node.observations import Observations
from space.node.parts import Parts
from space.node.pool import Pool
from space.node.sessions import Sessions
from space.node.settings import NodeSettings
from space.node.slots import Slots
from space.node.template_images import TemplateImages
from space.node.template_maker import TemplateImageMaker
from space.node.upkeep import Upkeep

log = structlog.get_logger(__name__)


class Node(NodeFiles):
    """One host.  `run` is its life; the other methods wait until it has taken up what an earlier life left."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        settings: NodeSettings,
        runtimes: Mapping[str, Runtime],
        templates: Templates,
        slots: Slots,
        images: Images,
        clock: Clock,
    ) -> None:
        self._id = node_id
        self._settings = settings
        self._runtimes = runtimes
        self._slots = slots
        self._images = images
        self._clock = clock
        self._capabilities: dict[str, Capabilities] = {}
        self._memory_mib = max(facts.memory_total_mib() - settings.memory_reserve_mib, 0)
        self._observations = Observations()
        self._journals = JournalFolder(settings.data_dir / "journals", limit_bytes=settings.journal_limit_mib << 20)
        self._generations = Generations(settings.data_dir / "node" / "generations", clock)
        self._sessions = Sessions(self._journals, self._observations, clock)
        self._template_images = TemplateImages(settings, self._capabilities)
        self._machines = Machines(
            Parts(
                settings=settings,
                runtimes=runtimes,
                capabilities=self._capabilities,
                templates=templates,
                slots=slots,
                generations=self._generations,
                sessions=self._sessions,
                continuity=Continuity(self._journals, self._sessions, self._observations),
                images=images,
                observations=self._observations,
                clock=clock,
                memory_mib=self._memory_mib,
            ),
            self._template_images,
        )
        self._upkeep = Upkeep(self._machines)
        self._pool = Pool(self._machines)
        self._checkpoints = Checkpoints(self._machines, settings.data_dir / "node" / "staging")
        self._maker = TemplateImageMaker(
            self._machines, self._template_images, clock, idle_seconds=settings.idle_before_image
        )
        self._started = asyncio.Event()

    # Life

    async def run(self) -> None:
        """Recover, then serve until cancelled.  Machines outlive it."""
        (self._settings.data_dir / "node").mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            await anyio.to_thread.run_sync(self._generations.load)
            await anyio.to_thread.run_sync(self._sessions.load)
            await anyio.to_thread.run_sync(self._checkpoints.load)
            async with anyio.create_task_group() as tasks:
                async with anyio.create_task_group() as starting:
                    for runtime in self._runtimes.values():
                        starting.start_soon(self._probe, runtime)
                    starting.start_soon(self._upkeep.recover, tasks)
                await self._template_images.load()
                tasks.start_soon(self._slots.run)
                tasks.start_soon(self._maker.run)
                tasks.start_soon(self._sweep)
                self._started.set()
                log.info("node.started", node=self._id, machines=len(self._machines))
        finally:
            self._started.clear()
            with anyio.CancelScope(shield=True):
                await self._journals.aclose()
            self._generations.close()

    async def _probe(self, runtime: Runtime) -> None:
        """Find out what a runtime can do; that it cannot be found out is a "no" until the next sweep."""
        try:
            found = await runtime.probe()
        except Exception as error:
            log.exception("runtime.probe_failed", runtime=runtime.name)
            reasons = {"available": f"probing failed: {error}"}
            found = Capabilities(runtime=runtime.name, is_available=False, reasons=reasons)
        self._capabilities[runtime.name] = found

    async def started(self) -> None:
        """Return once the node has recovered and takes orders."""
        await self._started.wait()

    async def _sweep(self) -> None:
        while True:
            await anyio.sleep(self._settings.sweep_seconds)
            for runtime in self._runtimes.values():
                if not self._capabilities[runtime.name].is_available:
                    await self._probe(runtime)
            try:
                await self._upkeep.sweep()
                await self._journals.expire(self._clock.now().timestamp() - self._settings.journal_keep_hours * 3600)
            except Exception:  # whatever is wrong with one thing here, the machines go on
                log.exception("node.sweep_failed")

    async def facts(self) -> NodeFacts:
        await self.started()
        promised = self._machines.memory_mib
        room = int(self._memory_mib * self._settings.memory_overcommit)
        return NodeFacts(
            id=self._id,
            epoch=self._settings.epoch,
            runtimes=dict(self._capabilities),
            vcpus=facts.vcpus(),
            memory_mib=room,
            memory_available_mib=max(room - promised, 0),
            disk_available_mib=facts.disk_available_mib(self._settings.data_dir),
            machines=len(self._machines),
        )

    # Machines

    async def ensure(self, order: MachineOrder) -> None:
        await self.started()
        await self._machines.ensure(order)

    async def pause(self, ref: MachineRef) -> None:
        await self.started()
        await self._machines.pause(ref)

    async def resume(self, ref: MachineRef) -> None:
        await self.started()
        await self._machines.resume(ref)

    async def checkpoint(self, ref: MachineRef, order: SnapshotOrder) -> SnapshotPlan:
        await self.started()
        return await self._checkpoints.make(ref, order)

    async def upload(self, order: SnapshotOrder) -> SnapshotResult:
        await self.started()
        return await self._checkpoints.upload(order)

    async def discard(self, snapshot_id: SnapshotId) -> None:
        await self.started()
        await self._images.discard(snapshot_id)

    async def release(self, ref: MachineRef) -> None:
        await self.started()
        await self._machines.release(ref)

    async def park(self, order: PoolOrder) -> None:
        await self.started()
        await self._pool.park(order)

    async def bind(self, pooled_id: PooledId, order: MachineOrder) -> None:
        await self.started()
        await self._pool.bind(pooled_id, order)

    async def retire(self, pooled_id: PooledId) -> None:
        await self.started()
        await self._pool.retire(pooled_id)

    async def parked(self) -> Collection[PooledId]:
        await self.started()
        return [pooled_id for pooled_id in self._pool.parked() if pooled_id != self._maker.making]

    async def remove(self, ref: MachineRef, *, grace: float = 0) -> None:
        await self.started()
        await self._machines.remove(ref, grace=grace)

    async def report(self) -> Mapping[SandboxId, int]:
        await self.started()
        return self._machines.report()

    async def stats(self, ref: MachineRef) -> Mapping[str, float]:
        await self.started()
        live = self._machines.get(ref)
        said: Mapping[str, float] = {}
        if live.halt is None:
            with suppress(SpaceError):
                said = await (await live.guest(deadline=1)).stats()
        return {**said, **await live.machine.stats()}  # what the host measures counts, not what a guest says

    def observations(self) -> AsyncIterator[MachineExited | SessionStatus]:
        return self._observations.take()

    # Commands

    async def start_process(self, ref: MachineRef, order: ProcessOrder) -> SessionStatus:
        await self.started()
        return await self._machines.get(ref).start_process(order)

    async def signal_process(self, ref: MachineRef, process_id: ProcessId, signal: str) -> None:
        await self.started()
        live = self._machines.get(ref)
        if self._sessions.is_running(ref, process_id):
            async with live.call() as guest:
                await guest.signal(process_id, signal)

    async def write_stdin(self, ref: MachineRef, process_id: ProcessId, data: bytes) -> None:
        async with self._stdin_guest(ref, process_id) as guest:
            await guest.write_stdin(process_id, data)

    async def close_stdin(self, ref: MachineRef, process_id: ProcessId) -> None:
        async with self._stdin_guest(ref, process_id) as guest:
            await guest.close_stdin(process_id)

    @asynccontextmanager
    async def _stdin_guest(self, ref: MachineRef, process_id: ProcessId) -> AsyncIterator[Guest]:
        await self.started()
        live = self._machines.get(ref)
        if not self._sessions.is_running(ref, process_id):
            raise FailedPrecondition(f"process {process_id} has ended; it reads no input")
        async with live.call() as guest:
            yield guest

    async def resize(self, ref: MachineRef, process_id: ProcessId, size: Pty) -> None:
        await self.started()
        live = self._machines.get(ref)
        if self._sessions.is_running(ref, process_id):
            async with live.call() as guest:
                await guest.resize(process_id, size)

    async def session_status(self, session_id: SessionId) -> SessionStatus | None:
        await self.started()
        journal = self._journals.find(session_id)
        return journal.status() if journal is not None else None

    async def read_session(
        self, session_id: SessionId, *, start: int = 0, follow: bool = True
    ) -> AsyncGenerator[JournalRecord | Trimmed, None]:
        """See `NodeClient.read_session`; close the generator if you leave it early."""
        await self.started()
        async with aclosing(self._journals.read(session_id, start=start, follow=follow)) as records:
            async for record in records:
                yield record

    async def forget_session(self, session_id: SessionId) -> None:
        await self.started()
        await self._journals.forget(session_id)

"""Starting, finding again and sweeping gVisor sandboxes."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from space.core.errors import RuntimeFailed
from space.core.node import Capabilities, MachineHandle, MachineSpec
from space.host.cgroup import Cgroups
from space.host.daemon import boot_id, start_time_of
from space.host.failpoint import failpoint
from space.host.instance import Instance
from space.host.network import give_addresses
from space.host.process import ProcessFailed, process_is
from space.host.reaper import owned
from space.runtimes.first_process import FirstProcess, guest_agent
from space.runtimes.gvisor import bundle, found, origin
from space.runtimes.gvisor.command import Runsc, check_id
from space.runtimes.gvisor.machine import GVisorMachine, remove_files
from space.runtimes.gvisor.origin import Origin
from space.runtimes.gvisor.probe import probe

log = structlog.get_logger(__name__)

NAME = "gvisor"
START_SECONDS = 60.0
LIMIT_SECONDS = 0.005  #: between looks for a sentry
STARTS = ("run", "restore")
KERNEL_DIED = "failed: EOF"  #: the call to the guest's kernel, in what runsc says
TOKEN_FD = 3  #: in the guest: a pipe that gives the token once


class GVisor:
    """The gVisor runtime of one instance.

    `first_process` names what runs as pid 1 of the guest.  `hardened`
    gives up direct file access: the sentry then runs as nobody without capabilities, and walks directories up to
    forty times slower (gvisor.md §6, §9).
    """

    def __init__(
        self,
        instance: Instance,
        *,
        first_process: FirstProcess = guest_agent,
        runsc: str = "runsc",
        concurrency: int | None = None,
        hardened: bool = False,
    ) -> None:
        root = instance.run_dir / NAME
        self._runsc = Runsc(program=runsc, root=root, hardened=hardened)
        self._cgroups = Cgroups(instance)
        self._first_process = first_process
        self._machines: dict[str, GVisorMachine] = {}
        self._starting: dict[str, tuple[asyncio.Lock, int]] = {}  #: by machine, and how many want it
        # Starts are bound by CPU: more at once only makes each of them late (gvisor.md §3).
        self._places = asyncio.Semaphore(concurrency or 2 * (os.cpu_count() or 1))

    @property
    def name(self) -> str:
        return NAME

    async def probe(self) -> Capabilities:
        return await probe(self._runsc)

    async def start(self, spec: MachineSpec, *, snapshot: Path | None = None) -> GVisorMachine:
        check_id(spec.machine_id)
        async with self._exclusively(spec.machine_id):
            running = self._machines.get(spec.machine_id)
            if running is not None and not running.has_ended:
                return running
            machine = await asyncio.to_thread(self._find, spec)
            if machine is None:
                async with self._places:
                    machine = await self._start(spec, snapshot)
            self._remember(machine)
            return machine

    @contextlib.asynccontextmanager
    async def _exclusively(self, machine_id: str) -> AsyncIterator[None]:
        """Let one task at a time start a machine: the failure of a second start would take the first one's away."""
        lock, users = self._starting.get(machine_id, (asyncio.Lock(), 0))
        self._starting[machine_id] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._starting.pop(machine_id)
            if users > 1:
                self._starting[machine_id] = lock, users - 1

    def _remember(self, machine: GVisorMachine) -> None:
        self._machines = {each.machine_id: each for each in self._machines.values() if not each.is_removed}
        self._machines[machine.machine_id] = machine

    def _find(self, spec: MachineSpec) -> GVisorMachine | None:
        """Return the machine if an earlier process of the node got it to run; else remove what there is of it."""
        if not (spec.state_dir / spec.machine_id).exists() and not self._runsc.files_of(spec.machine_id):
            return None  # never tried: the look at every process of the host can be saved
        processes = [each for each in found.processes(self._runsc.root) if each.machine_id == spec.machine_id]
        is_starting = any(process.kind == found.COMMAND and process.verb in STARTS for process in processes)
        if not is_starting and any(process.kind == found.SENTRY for process in processes):
            with contextlib.suppress(OSError, ValueError, KeyError, ProcessFailed):
                return GVisorMachine(self._handle(spec), spec, runsc=self._runsc, cgroups=self._cgroups)
        self._remove_half_built(spec)
        return None

    async def _start(self, spec: MachineSpec, snapshot: Path | None) -> GVisorMachine:
        self._runsc.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._cgroups.create(spec.slot.cgroup, spec.resources)
            if snapshot is None:
                await self._boot(spec)
            else:
                await self._restore(spec, snapshot)
            self._cgroups.add_overhead(spec.slot.cgroup, spec.resources)
            return GVisorMachine(self._handle(spec), spec, runsc=self._runsc, cgroups=self._cgroups)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.to_thread(self._remove_half_built, spec))
            raise
        except (ProcessFailed, RuntimeFailed, OSError, ValueError, KeyError) as error:
            said = _tail(spec)
            await asyncio.to_thread(self._remove_half_built, spec)
            log.error("gvisor.start_failed", machine=spec.machine_id, error=str(error), runsc=said)
            raise RuntimeFailed(f"runsc did not start machine {spec.machine_id}") from error

    async def _boot(self, spec: MachineSpec) -> None:
        argv, env = self._first_process(spec, f"fd:{TOKEN_FD}")
        directory = bundle.write(spec, argv=argv, env=env)
        failpoint("gvisor.before_run")
        with token_pipe(spec.token) as token:
            await self._launch(spec, "run", f"-bundle={directory}", f"-pass-fd={token}:{TOKEN_FD}", pass_fds=(token,))
        failpoint("gvisor.after_run")

    async def _restore(self, spec: MachineSpec, snapshot: Path) -> None:
        """Let a machine go on from a checkpoint: its processes have their arguments, environment and token already."""
        found = origin.read(snapshot)
        spec = replace(spec, agent_dir=found.agent_dir(spec.agent_dir))
        try:
            await self._restore_once(spec, snapshot, found)
        except ProcessFailed as error:
            if KERNEL_DIED not in error.stderr:
                raise
            # It had a connected UDP socket, whose address is not there.  With the old address beside the new one it
            # starts; what it sends from there, the gateway drops as forged.
            log.warning("gvisor.restore_with_old_addresses", machine=spec.machine_id)
            await asyncio.to_thread(self._remove_half_built, spec)
            self._cgroups.create(spec.slot.cgroup, spec.resources)
            await give_addresses(spec.slot, found.addresses)
            await self._restore_once(spec, snapshot, found)

    async def _restore_once(self, spec: MachineSpec, snapshot: Path, found: Origin) -> None:
        directory = bundle.write(spec, argv=("restored",), env={})
        origin.inherit(spec, found)
        failpoint("gvisor.before_restore")
        raising = asyncio.ensure_future(self._raise_limit(spec))
        try:
            await self._launch(spec, "restore", f"-bundle={directory}", f"-image-path={snapshot}")
        finally:
            raising.cancel()
            await asyncio.gather(raising, return_exceptions=True)
        failpoint("gvisor.after_restore")

    async def _launch(self, spec: MachineSpec, verb: str, *options: str, pass_fds: Sequence[int] = ()) -> None:
        await self._runsc.call(
            verb,
            "-detach",
            f"-pid-file={spec.state_dir / 'pid'}",
            *options,
            spec.machine_id,
            log=spec.state_dir / "runsc.log",
            filestore=spec.slot.filestore,
            pass_fds=pass_fds,
            read_only=(spec.agent_dir,),
            timeout=START_SECONDS,
        )

    async def _raise_limit(self, spec: MachineSpec) -> None:
        """Give the runtime its overhead as soon as it has read how much memory the guest is to see.

        A guest that used most of its memory when it was saved needs it, and the runtime its own, before runsc returns.
        """
        while True:
            await asyncio.sleep(LIMIT_SECONDS)
            if found.has_sentry(self._cgroups.pids(spec.slot.cgroup)):
                self._cgroups.add_overhead(spec.slot.cgroup, spec.resources)
                return

    def _handle(self, spec: MachineSpec) -> MachineHandle:
        """Read from runsc's own state which processes the machine has; its sentry's pid is also in the pid file."""
        (state,) = self._runsc.root.glob(f"{spec.machine_id}_*.state")
        content = json.loads(state.read_text())
        pid, gofer = int(content["sandbox"]["pid"]), int(content["goferPid"])
        start_time = start_time_of(pid)
        if start_time is None:
            raise ProcessFailed(["runsc-sandbox"], None, "the sandbox ended as soon as it had started")
        owned.add(gofer)
        return MachineHandle(
            runtime=NAME,
            machine_id=spec.machine_id,
            pid=pid,
            pid_start_time=start_time,
            details={
                "gofer_pid": gofer,
                "gofer_start_time": start_time_of(gofer),
                "cgroup": spec.slot.cgroup,
                "boot_id": boot_id(),
            },
        )

    def _remove_half_built(self, spec: MachineSpec) -> None:
        for process in found.processes(self._runsc.root):
            if process.machine_id == spec.machine_id:
                _kill(process)
        self._cgroups.remove(spec.slot.cgroup)
        remove_files(self._runsc, spec.machine_id, spec.state_dir)

    async def recover(self, handle: MachineHandle, spec: MachineSpec) -> GVisorMachine | None:
        known = self._machines.get(handle.machine_id)
        if known is not None:
            return None if known.has_ended else known
        is_of_this_boot = handle.details.get("boot_id") in (None, boot_id())
        if not is_of_this_boot or not process_is(handle.pid, handle.pid_start_time):
            return None
        machine = GVisorMachine(handle, spec, runsc=self._runsc, cgroups=self._cgroups)
        self._remember(machine)
        return machine

    async def sweep(self, keep: frozenset[str]) -> Sequence[str]:
        return await asyncio.to_thread(self._sweep, keep)

    def _sweep(self, keep: frozenset[str]) -> Sequence[str]:
        gone: set[str] = set()
        cgroups: set[str] = set()
        for process in found.processes(self._runsc.root):
            machine_id = process.machine_id
            if machine_id is None or machine_id in keep or machine_id in self._starting:
                continue
            gone.add(machine_id)
            _kill(process)
            if process.cgroup and process.cgroup.startswith(f"{self._cgroups.instance.cgroup}/"):
                cgroups.add(process.cgroup)
        for path in cgroups:
            try:
                self._cgroups.remove(path)
            except TimeoutError as error:  # one that hangs in the kernel; the sweep of cgroups tries it again
                log.error("gvisor.sweep_failed", error=str(error))
        for file in self._runsc.root.glob("*"):
            machine_id = _id_of(file.name)
            if machine_id and machine_id not in keep and machine_id not in self._starting:
                gone.add(machine_id)
                file.unlink(missing_ok=True)
        for machine_id in gone:
            self._machines.pop(machine_id, None)
        return sorted(gone)


@contextlib.contextmanager
def token_pipe(token: str) -> Iterator[int]:
    """Return the reading end of a pipe that holds the token and has no writer: who reads it first has it alone."""
    reading, writing = os.pipe()
    try:
        with os.fdopen(writing, "w") as pipe:
            pipe.write(token)
        yield reading
    finally:
        os.close(reading)


def _id_of(name: str) -> str | None:
    """Return the machine that a file of runsc's belongs to: `ID_sandbox:ID.state`, `runsc-ID.sock`."""
    candidate = name.removeprefix("runsc-").partition("_")[0].partition(".")[0]
    with contextlib.suppress(ValueError):
        check_id(candidate)
        return candidate
    return None


def _kill(process: found.Found) -> None:
    """Kill a process that was found; if it has ended meanwhile, not the one that now has its pid."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(process.pid)
        try:
            if process_is(process.pid, process.start_time):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def _tail(spec: MachineSpec) -> str:
    """Return what runsc logged last, without the stack that may follow; it is for the server's log only."""
    with contextlib.suppress(OSError, IndexError):
        return (spec.state_dir / "runsc.log").read_text(errors="replace").splitlines()[-1][:1000]
    return ""

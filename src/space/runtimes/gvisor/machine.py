"""One running gVisor sandbox: its kernel (the sentry), its file server (the gofer) and its stubs."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from space.core.errors import GuestUnreachable, RuntimeFailed
from space.core.node import Exit, MachineHandle, MachineSpec
from space.host import netns
from space.host.cgroup import Cgroups
from space.host.failpoint import failpoint
from space.host.process import ProcessFailed, pidfd_exited, process_is
from space.host.reaper import collect, collect_by_pidfd, owned
from space.host.stream import SocketStream
from space.runtimes.gvisor import checkpoint, sentry
from space.runtimes.gvisor.command import Runsc
from space.runtimes.gvisor.sentry import SentryRefused
from space.runtimes.gvisor.standstill import Pauses

CONNECT_SECONDS = 1.0
REACTION_SECONDS = 5.0


class GVisorMachine:
    """Watches the sentry by a pidfd, so that its end is known at once and its pid cannot be mistaken for another's."""

    def __init__(self, handle: MachineHandle, spec: MachineSpec, *, runsc: Runsc, cgroups: Cgroups) -> None:
        self._handle = handle
        self._spec = spec
        self._runsc = runsc
        self._cgroups = cgroups
        self._exit: Exit | None = None
        self._is_stopping = False
        self.is_removed = False  #: stopped, and nothing of it is left
        self._stopping = asyncio.Lock()
        self._pauses = Pauses(spec.state_dir / spec.machine_id, ask=self._ask, runs=self._runs)
        owned.add(handle.pid)
        self._pidfd: int | None = None
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(handle.pid)
            if process_is(handle.pid, handle.pid_start_time):
                self._pidfd = pidfd
            else:  # it ended and, not being ours to reap, its pid went to another
                os.close(pidfd)

    @property
    def handle(self) -> MachineHandle:
        return self._handle

    @property
    def machine_id(self) -> str:
        return self._handle.machine_id

    @property
    def has_ended(self) -> bool:
        return self._exit is not None or not process_is(self._handle.pid, self._handle.pid_start_time)

    async def pause(self) -> None:
        await self._pauses.pause()

    async def resume(self) -> None:
        await self._pauses.resume()

    async def _ask(self, method: str) -> None:
        if self.has_ended:
            raise GuestUnreachable(f"machine {self.machine_id} has ended")
        try:
            await sentry.call(self._runsc.control_socket(self.machine_id), f"containerManager.{method}")
        except SentryRefused as error:
            raise RuntimeFailed(f"machine {self.machine_id} does not do {method}: {error}") from error

    async def _runs(self) -> bool:
        """Whether the agent reacts: it hangs up on who does not speak its language."""
        try:
            stream = await self.connect(self._spec.agent_port)
        except GuestUnreachable:
            return False
        try:
            async with asyncio.timeout(REACTION_SECONDS):
                await stream.send(b"?" * 64)
                await stream.receive()
        except (TimeoutError, OSError):
            return False
        finally:
            await stream.aclose()
        return True

    async def snapshot(self, into: Path) -> None:
        if self.has_ended:
            raise RuntimeFailed(f"machine {self.machine_id} has ended")
        await checkpoint.write(self._runsc, self._spec, into)

    async def stop(self, *, grace: float = 0) -> None:
        self._is_stopping = True
        async with self._stopping:
            if grace > 0 and not self.has_ended:
                with contextlib.suppress(ProcessFailed, TimeoutError):
                    await self._runsc.call("kill", self.machine_id, "TERM")
                    await asyncio.wait_for(self.wait(), grace)
            await self._kill()
            failpoint("gvisor.after_kill")
            await asyncio.shield(asyncio.to_thread(self._remove_traces))
            self.is_removed = True

    async def _kill(self) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        await self.wait()

    def _remove_traces(self) -> None:
        """Remove what `runsc delete` would, without its two seconds of polling."""
        self._cgroups.remove(self._spec.slot.cgroup)
        remove_files(self._runsc, self.machine_id, self._spec.state_dir)
        gofer = self._handle.details.get("gofer_pid")
        if gofer:
            collect(gofer)
            owned.discard(gofer)

    async def wait(self) -> Exit:
        if self._exit is None and self._pidfd is not None:
            await pidfd_exited(self._pidfd)
        if self._exit is None:
            self._exit = self._find_reason()
        return self._exit

    def _find_reason(self) -> Exit:
        """Tell why it ended; the status is known only while this process is the sentry's parent or adopted it."""
        status = None
        if self._pidfd is not None:
            status = collect_by_pidfd(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        owned.discard(self._handle.pid)
        if self._is_stopping:
            return Exit(reason="stopped", code=status)
        if self._cgroups.oom_kills(self._spec.slot.cgroup) > 0:
            return Exit(reason="oom", code=status)
        if status is not None and status < 0:
            return Exit(reason="killed", code=status)
        return Exit(reason="runtime_exited", code=status)

    async def stats(self) -> Mapping[str, float]:
        usage = self._cgroups.usage(self._spec.slot.cgroup)
        return {
            "cpu_seconds": usage.cpu_seconds,
            "memory_bytes": float(usage.memory_bytes),
            "pids": float(usage.pids),
        }

    async def connect(self, port: int) -> SocketStream:
        slot = self._spec.slot
        try:
            return await netns.open_tcp(slot.gateway_netns, slot.guest_ip, port, timeout=CONNECT_SECONDS)
        except OSError as error:
            raise GuestUnreachable(f"port {port} of machine {self.machine_id}: {error}") from error


def remove_files(runsc: Runsc, machine_id: str, state_dir: Path | None) -> None:
    """Remove runsc's state of a machine that has ended, and what was written for it."""
    for path in runsc.files_of(machine_id):
        path.unlink(missing_ok=True)
    if state_dir is not None:
        shutil.rmtree(state_dir / machine_id, ignore_errors=True)
        for name in ("pid", "runsc.log"):
            (state_dir / name).unlink(missing_ok=True)

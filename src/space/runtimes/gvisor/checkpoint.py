"""Checkpoints: a moment of a running sandbox, as the three files that `runsc restore` reads.

The kernel of the guest stands still while they are written, so nothing is done in that time that can be done before
or after it.  runsc tells of a write that failed, but not of one that fails later, on its way to the disk: hence the
sync, and a look at what is there.

TCP connections with the world outside end, in the machine that goes on too: this runsc cuts them as it saves
(`--net-disconnect-ok`; without it the checkpoint fails).  One that is cut so haunts the restored kernel: epoll reports
it for ever, even when it is closed, so that a server in the guest spins and takes no new connection of that number.
Hence all of them are reset from outside beforehand, which the guest sees as any other reset.  Connections within the
guest last.
"""

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import structlog

from space.core.errors import FailedPrecondition, InsufficientStorage, RuntimeFailed, SpaceError
from space.core.node import MachineSpec
from space.host.connections import Connections
from space.host.failpoint import failpoint
from space.runtimes.gvisor import found, origin, sentry
from space.runtimes.gvisor.command import Runsc
from space.runtimes.gvisor.sentry import SentryRefused

log = structlog.get_logger(__name__)

WRITTEN = ("checkpoint.img", "pages_meta.img", "pages.img")  #: by the sentry, which takes them in this order
FILES = (*WRITTEN, origin.FILE)
#: `-leave-running`, without which a save that fails kills the machine (trap 2), and `-compression=none`.
OPTIONS = {"metadata": {"compression": "none"}, "have_pages_file": True, "Resume": True}
MAGIC = b"gVisorSF"  #: how a state file begins (gvisor pkg/state/statefile)
PAGE = 4096
WRITE_SECONDS = 600.0
MOST_PROGRAMS_BYTES = 16 << 20  #: of the sentry's list; each of them takes some 200
SETTLE_SECONDS = 0.005  #: until the guest's kernel has taken a reset in
#: What runsc says when something in the guest cannot be saved → what that is.
CAUSES = (
    (re.compile(r"bound host socket"), "a socket that is bound on the host"),
    (re.compile(r"tcp\.\(\*Endpoint\)"), "a TCP connection that is being made; try again once it is made or given up"),
    (re.compile(r"deleted and invalidated"), "a file that is open and was deleted"),
    (re.compile(r"host\.inode|host FD"), "a descriptor of the host, as of `runsc exec`"),
)
NO_SPACE = re.compile(r"no space left|ENOSPC|disk quota|EDQUOT", re.I)


async def write(runsc: Runsc, spec: MachineSpec, into: Path) -> None:
    """Write a checkpoint into the new directory `into`; see `core.ports.Machine.snapshot`.

    The machine's agent must have answered once: until it has read its token it holds a pipe of the host, and what holds
    one can be saved but not restored.
    """
    machine_id = spec.machine_id
    try:
        into.mkdir(mode=0o700)  # noqa: ASYNC240 - as quick as handing it to a thread
    except FileExistsError as error:
        raise RuntimeFailed(f"{into.name} exists already: a checkpoint needs a new directory") from error
    except OSError as error:
        raise refusal(machine_id, str(error), into=into) from error
    try:
        is_in_exec = await _checkpoint(runsc, spec, into)
        if is_in_exec:
            raise FailedPrecondition(
                f"machine {machine_id} cannot be saved: a program that `runsc exec` started runs in it; end it first"
            )
        failpoint("gvisor.after_checkpoint")
        origin.note(spec, into)
        await asyncio.to_thread(verify, into, most_bytes(spec))
    except BaseException as error:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, into, ignore_errors=True))
        if isinstance(error, SentryRefused | OSError):
            said = str(error)
            log.warning("gvisor.checkpoint_failed", machine=machine_id, runsc=said[-2000:])
            raise refusal(machine_id, said, into=into) from error
        raise


async def _checkpoint(runsc: Runsc, spec: MachineSpec, into: Path) -> bool:
    """Let runsc write it, unless a program of a `runsc exec` runs in it; return whether one does.

    Such a program is saved without an error but cannot be restored (trap 3).  Nobody here starts one, an operator can.
    The sentry tells of it, also when its session was detached or killed.  One that begins while all is written has a
    session; to look for that costs as much as the whole of /proc, so it is done beside.
    """
    if await _has_foreign_program(runsc.control_socket(spec.machine_id), spec.machine_id):
        return True
    looking = asyncio.ensure_future(asyncio.to_thread(has_exec, runsc.root, spec.machine_id))
    try:
        for _ in range(2):  # once more for a guest that connects again at once
            if await asyncio.to_thread(_reset_connections, spec):
                await asyncio.sleep(SETTLE_SECONDS)
        await _save(runsc.control_socket(spec.machine_id), into)
    finally:
        is_in_exec = await asyncio.shield(looking)
    return is_in_exec


async def _has_foreign_program(control: Path, machine_id: str) -> bool:
    """Whether a program other than the first has no parent in the guest; orphans of the guest are the first's."""
    programs = await sentry.call(control, "containerManager.Processes", machine_id, max_answer=MOST_PROGRAMS_BYTES)
    if not isinstance(programs, list) or not all(isinstance(program, dict) for program in programs):
        raise RuntimeFailed(f"the sentry of machine {machine_id} does not tell what runs in it")
    return any(program.get("ppid") == 0 and program.get("pid") != 1 for program in programs)


async def _save(control: Path, into: Path) -> None:
    """Have the sentry write the three files; what `runsc checkpoint` does after it has started, for some 20 ms."""
    fds: list[int] = []
    try:
        for name in WRITTEN:
            fds.append(os.open(into / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        _close(fds)
        raise
    saving = asyncio.ensure_future(
        sentry.call(control, "containerManager.Checkpoint", OPTIONS, fds=fds, timeout=WRITE_SECONDS)
    )
    # Only then: if nobody waits any more, other files could get these numbers and be sent to the sentry.
    saving.add_done_callback(lambda task: _close(fds))
    saving.add_done_callback(lambda task: task.cancelled() or task.exception())
    await asyncio.shield(saving)


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def _reset_connections(spec: MachineSpec) -> int:
    """End the guest's connections with the world, as far as this host's kernel can; return how many there were."""
    try:
        with contextlib.closing(Connections(spec.slot.gateway_netns, spec.slot.guest_ip)) as connections:
            return connections.reset()
    except OSError as error:
        log.warning("gvisor.connections_not_reset", machine=spec.machine_id, error=str(error))
        return 0


def most_bytes(spec: MachineSpec) -> int:
    """Return what one file may have at most: the guest's memory and disk, and plenty for its kernel.

    A sentry that was taken over could make a file of any size that takes no room, and looking at it would never end.
    """
    return (2 * (spec.resources.memory_mib + spec.resources.disk_mib) + 1024) << 20


def verify(directory: Path, most: int) -> None:
    """Bring the files to the disk and look whether they can be a checkpoint; raises `RuntimeFailed` or `OSError`."""
    for name in FILES:
        descriptor = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
            size, head = os.fstat(descriptor).st_size, os.pread(descriptor, len(MAGIC), 0)
        finally:
            os.close(descriptor)
        is_whole = {"pages.img": size % PAGE == 0, "checkpoint.img": head == MAGIC}.get(name, True)
        if not 0 < size <= most or not is_whole:
            raise RuntimeFailed(f"runsc wrote a {name} of {size} bytes that cannot be right")
    for place in (directory, directory.parent):
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def refusal(machine_id: str, said: str, *, into: Path) -> SpaceError:
    """Return what a failed checkpoint means; the machine goes on in each case."""
    if NO_SPACE.search(said):
        return InsufficientStorage(f"the disk of {into.parent} is full; free some space")
    for pattern, cause in CAUSES:
        if pattern.search(said):
            return FailedPrecondition(f"machine {machine_id} cannot be saved: it has {cause}")
    return RuntimeFailed(f"runsc did not save machine {machine_id}")


def has_exec(root: Path, machine_id: str) -> bool:
    """Whether somebody runs `runsc exec` in this machine."""
    return any(each.verb == "exec" and each.machine_id == machine_id for each in found.processes(root))

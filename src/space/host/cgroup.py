"""Control groups of machines: memory, processes and CPU, on v1, hybrid and v2 hosts.

The runtime joins a group that exists already and leaves its settings alone, so the limits are ours.  The limit on
pids counts the threads of gVisor's kernel and its stubs, so it is a backstop, not the guest's limit (gvisor.md §1).
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from space.core.sandbox import Resources
from space.host.instance import Instance

log = structlog.get_logger(__name__)

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
MIN_PIDS = 4096
#: What the runtime itself needs beside the guest's memory: kernel, file server and stubs took 21 MiB PSS idle and
#: 70 MiB with page tables at work (gvisor.md §3); without it, a guest of 128 MiB could not use half of them.
OVERHEAD_MIB = 64
REMOVE_SECONDS = 5.0
MEMORY, PIDS, CPU = "memory", "pids", "cpu"
#: Where processes go that are in the way of switching controllers on (v2), below the group that they were in.
REST = "space-rest"
MOVES = 10  #: attempts, because a process may start another one while it is moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the processes of a group use now."""

    cpu_seconds: float
    memory_bytes: int
    pids: int


class Cgroups:
    """The groups of one instance.  Paths are as in `core.node.Slot.cgroup`: `/space-3f9a0c1d/m7`."""

    def __init__(self, instance: Instance, *, root: Path = ROOT) -> None:
        self.instance = instance
        self.root = root
        self.is_v2 = (root / "cgroup.controllers").exists()

    def directories(self, path: str) -> Mapping[str, Path]:
        """Return the directory of each controller that we set."""
        if self.is_v2:
            return dict.fromkeys((MEMORY, PIDS, CPU, "cpuacct"), self.root / path[1:])
        return {name: self.root / name / path[1:] for name in (MEMORY, PIDS, CPU, "cpuacct")}

    def create(self, path: str, resources: Resources) -> None:
        """Make a group with these limits, or set those of one that exists.

        runsc tells the guest that its memory is the group's limit, so that is `memory_mib` until `add_overhead`.
        """
        self._check(path)
        directories = self.directories(path)
        for directory in directories.values():
            directory.mkdir(parents=True, exist_ok=True)
            if self.is_v2:
                self._delegate(directory)
        self._limit_memory(directories[MEMORY], resources.memory_mib)
        pids = str(max(MIN_PIDS, resources.memory_mib * 4))
        quota = resources.vcpus * PERIOD_US
        if self.is_v2:
            _write(directories[MEMORY] / "memory.oom.group", "1")
            _write(directories[CPU] / "cpu.max", f"{quota} {PERIOD_US}")
        else:
            _write(directories[CPU] / "cpu.cfs_period_us", str(PERIOD_US))
            _write(directories[CPU] / "cpu.cfs_quota_us", str(quota))
        _write(directories[PIDS] / "pids.max", pids)

    def add_overhead(self, path: str, resources: Resources) -> None:
        """Raise the memory limit by what the runtime itself needs, so that the guest can use all that it was given."""
        self._limit_memory(self.directories(path)[MEMORY], resources.memory_mib + OVERHEAD_MIB)

    def _limit_memory(self, directory: Path, mib: int) -> None:
        if self.is_v2:
            _write(directory / "memory.max", str(mib << 20))
            _write(directory / "memory.swap.max", "0", required=False)
        else:
            _set_v1_memory(directory, mib << 20)

    def _delegate(self, directory: Path) -> None:
        """Switch the controllers on from the root down to the group's parent (v2)."""
        for parent in reversed([p for p in directory.parents if p.is_relative_to(self.root)]):
            switch_on(parent, (MEMORY, PIDS, CPU))

    def usage(self, path: str) -> Usage:
        """Return what a group uses; zeros if there is none."""
        directories = self.directories(path)
        if self.is_v2:
            stat = dict(line.split() for line in _read(directories[CPU] / "cpu.stat").splitlines())
            cpu_seconds = int(stat.get("usage_usec", 0)) / 1e6
            memory = _number(directories[MEMORY] / "memory.current")
        else:
            cpu_seconds = _number(directories["cpuacct"] / "cpuacct.usage") / 1e9
            memory = _number(directories[MEMORY] / "memory.usage_in_bytes")
        pids = _number(directories[PIDS] / "pids.current")
        return Usage(cpu_seconds=cpu_seconds, memory_bytes=memory, pids=pids)

    def oom_kills(self, path: str) -> int:
        """Return how often the kernel has killed in a group for want of memory."""
        file = "memory.events" if self.is_v2 else "memory.oom_control"
        for line in _read(self.directories(path)[MEMORY] / file).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
        return 0

    def pids(self, path: str) -> set[int]:
        """Return the processes of a group."""
        found: set[int] = set()
        for directory in self._everywhere(path):
            found.update(int(pid) for pid in _read(directory / "cgroup.procs").split())
        return found

    def kill(self, path: str) -> None:
        """Send SIGKILL to every process of a group."""
        for pid in self.pids(path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self, path: str) -> None:
        """Kill what is left in a group and remove it under every controller, also those that only the runtime used.

        Blocks until its processes have gone, which the kernel needs milliseconds for.  Idempotent.

        Raises:
            TimeoutError: a process in it does not die (it hangs in the kernel).
        """
        self._check(path)
        deadline = time.monotonic() + REMOVE_SECONDS
        pause = 0.001
        while directories := self._everywhere(path):
            with contextlib.suppress(OSError):
                for directory in directories:
                    _remove_tree(directory)
                continue
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes of cgroup {path} do not end: {sorted(self.pids(path))}")
            self.kill(path)
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def sweep(self, keep: Collection[str]) -> list[str]:
        """Kill and remove every group of this instance but `keep`; return those found."""
        found: set[str] = set()
        for parent in self._everywhere(self.instance.cgroup):
            with contextlib.suppress(FileNotFoundError):
                found.update(f"{self.instance.cgroup}/{child.name}" for child in parent.iterdir() if child.is_dir())
        gone = sorted(found.difference(keep))
        stuck = [path for path in gone if not self._is_removed(path)]
        if not keep and not stuck:
            self.remove(self.instance.cgroup)
        return [path for path in gone if path not in stuck]

    def _is_removed(self, path: str) -> bool:
        """As `remove`; False for a group whose processes hang in the kernel, which must not be in the others' way."""
        try:
            self.remove(path)
        except TimeoutError as error:
            log.error("cgroup.not_removed", error=str(error))
            return False
        return True

    def _everywhere(self, path: str) -> list[Path]:
        """Return the group's directory under every controller on which the host has one."""
        if self.is_v2:
            return [directory] if (directory := self.root / path[1:]).exists() else []
        return [child / path[1:] for child in sorted(self.root.iterdir()) if (child / path[1:]).exists()]

    def _check(self, path: str) -> None:
        if not f"{path}/".startswith(f"{self.instance.cgroup}/") or ".." in path:
            raise ValueError(f"{path!r} is no cgroup of this instance")


def switch_on(group: Path, controllers: Collection[str]) -> None:
    """Switch controllers on for the groups below `group` (v2).

    The kernel refuses that (EBUSY) while `group` itself holds processes, unless it is the host's real root: what
    looks like the root in a container holds all of the container's.  They are moved one level down.
    """
    present = _read(group / "cgroup.subtree_control").split()
    missing = " ".join(f"+{name}" for name in controllers if name not in present)
    for attempt in range(MOVES if missing else 0):
        try:
            _write(group / "cgroup.subtree_control", missing)
            return
        except OSError as error:
            if error.errno != errno.EBUSY or attempt == MOVES - 1:
                raise
        _move_processes(group, group / REST)


def _move_processes(group: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for pid in _read(group / "cgroup.procs").split():
        with contextlib.suppress(OSError):  # it has ended, or is a thread of the kernel: the next attempt tells
            (target / "cgroup.procs").write_text(pid)


def _set_v1_memory(directory: Path, memory: int) -> None:
    """Limit memory and swap together; the order of the two writes depends on the direction of the change."""
    limit, both = directory / "memory.limit_in_bytes", directory / "memory.memsw.limit_in_bytes"
    try:
        limit.write_text(str(memory))
        _write(both, str(memory), required=False)
    except OSError:
        _write(both, str(memory), required=False)
        limit.write_text(str(memory))


def _write(file: Path, text: str, *, required: bool = True) -> None:
    """Write a setting; one that is not `required` may be missing from this kernel."""
    try:
        file.write_text(text)
    except OSError:
        if required:
            raise


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # no such group, or it goes away at this moment
        return ""


def _number(file: Path) -> int:
    return int(_read(file) or 0)


def _remove_tree(directory: Path) -> None:
    for child in directory.iterdir():
        if child.is_dir():
            _remove_tree(child)
    directory.rmdir()

"""What this host has to give."""

import os
from pathlib import Path


def memory_total_mib() -> int:
    """Return the host's memory, or that of the node's own cgroup if it is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        try:
            total = min(total, int(path.read_text()))
        except (OSError, ValueError):
            continue
    return total >> 20


def disk_available_mib(path: Path) -> int:
    """Return what an ordinary user may still write to the file system of `path`."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize >> 20


def vcpus() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))

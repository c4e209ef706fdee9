"""System calls that Python 3.11 lacks, by ctypes; each raises `OSError` as the standard library would."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_FS = 0x200
CLONE_NEWNS = 0x20000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_NOATIME = 0x400
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_SLAVE = 0x80000
MS_SHARED = 0x100000
MNT_DETACH = 0x2

PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def unshare(flags: int) -> None:
    """Give the calling thread namespaces of its own."""
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int) -> None:
    """Move the calling thread, and nobody else, into a namespace."""
    _check(_libc.setns(descriptor, kind), "setns")


def mount(source: str, target: Path | str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount a filesystem, or change how one is mounted: mount(2)."""
    _check(
        _libc.mount(source.encode(), os.fsencode(target), kind.encode() or None, flags, data.encode() or None),
        f"mount {target}",
    )


def umount(target: Path | str, flags: int = 0) -> None:
    """Unmount a filesystem: umount2(2)."""
    _check(_libc.umount2(os.fsencode(target), flags), f"umount {target}")


def become_subreaper() -> None:
    """Make orphaned descendants children of this process; it has to reap them from now on."""
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def stop_being_subreaper() -> None:
    """Let orphans go to pid 1 again."""
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0), "prctl")


@contextmanager
def network_namespace(path: Path | str) -> Iterator[None]:
    """Put the calling thread into a network namespace for the body, which must not await.

    A thread that cannot return would dial from the wrong place for ever, so that ends the process.
    """
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        other = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            setns(other, CLONE_NEWNET)
        finally:
            os.close(other)
        try:
            yield
        finally:
            try:
                setns(own, CLONE_NEWNET)
            except OSError:
                os.abort()
    finally:
        os.close(own)


def mounts_below(directory: Path) -> list[Path]:
    """Return mount points below a directory of the calling thread's mount namespace, innermost first."""
    prefix = f"{directory}/"
    found = []
    for line in Path("/proc/thread-self/mountinfo").read_text().splitlines():
        target = line.split(" ")[4].encode().decode("unicode_escape")
        if target.startswith(prefix):
            found.append(Path(target))
    return found[::-1]

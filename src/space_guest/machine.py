"""The machine as a whole: what it uses, its clock, its randomness."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from struct import Struct

from space_guest.request import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RNDADDENTROPY = 0x40085203
RNDRESEEDCRNG = 0x5207
MAX_ENTROPY = 4096
NO_LIMIT = 2**60  #: gVisor's overlay says 8 EiB: the host's limit does not show
_ENTROPY = Struct("ii")


def stats() -> dict[str, float]:
    """Return what the guest's kernel says of its use; what it does not say is left out."""
    found: dict[str, float] = {"pids": sum(name.isdigit() for name in os.listdir("/proc"))}
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/stat") as file:
        ticks = [int(value) for value in file.readline().split()[1:9]]
        busy = sum(ticks) - ticks[3] - ticks[4]
        found["cpu_seconds"] = busy / os.sysconf("SC_CLK_TCK")
    with contextlib.suppress(OSError, ValueError, KeyError), open("/proc/meminfo") as file:
        memory = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file if line.endswith("kB\n")}
        found["memory_total_bytes"] = memory["MemTotal"]
        found["memory_bytes"] = memory["MemTotal"] - memory.get("MemAvailable", memory["MemFree"])
    with contextlib.suppress(OSError):
        disk = os.statvfs("/")
        if disk.f_blocks * disk.f_frsize < NO_LIMIT:
            found["disk_total_bytes"] = disk.f_blocks * disk.f_frsize
        found["disk_bytes"] = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    return found


def time_of_day(args: dict[str, Any]) -> float:
    """Return the time that a request wants it to be."""
    seconds = args.get("unix_seconds")
    if not isinstance(seconds, int | float) or not 0 <= seconds < 2**33:
        raise Refused("invalid_request", "unix_seconds is a time")
    return seconds


def set_clock(args: dict[str, Any]) -> None:
    """Set the time of day; gVisor takes the host's by itself and answers `unsupported`."""
    seconds = time_of_day(args)
    if os.getpid() != 1:
        raise Refused("unsupported", "the clock is not this machine's")
    try:
        time.clock_settime(time.CLOCK_REALTIME, seconds)
    except OSError as error:
        code = "unsupported" if error.errno in (errno.EPERM, errno.ENOSYS, errno.EINVAL) else "internal"
        raise Refused(code, errno=error.errno) from None


def entropy(args: dict[str, Any]) -> bytes:
    """Return the random bytes of a request."""
    try:
        data = bytes.fromhex(args.get("hex", ""))
    except (TypeError, ValueError):
        data = b""
    if not 0 < len(data) <= MAX_ENTROPY:
        raise Refused("invalid_request", f"1 to {MAX_ENTROPY} bytes in hexadecimal")
    return data


def add_entropy(args: dict[str, Any]) -> None:
    """Mix random bytes into the kernel's pool and have it used at once, so that clones of a machine part ways."""
    data = entropy(args)
    try:
        with open("/dev/random", "wb", buffering=0) as device:
            fcntl.ioctl(device, RNDADDENTROPY, _ENTROPY.pack(len(data) * 8, len(data)) + data)
            with contextlib.suppress(OSError):
                fcntl.ioctl(device, RNDRESEEDCRNG)
    except OSError:
        with contextlib.suppress(OSError), open("/dev/urandom", "wb", buffering=0) as device:  # it may lack /dev
            device.write(data)

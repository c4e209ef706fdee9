"""Loop devices: a file as a block device, without `losetup`.

Each is set up with `LO_FLAGS_AUTOCLEAR`: the kernel frees the device, and with it the file if that has no name
left, when the last mount goes, whatever becomes of us.  Numbers are from linux/loop.h.
"""

import errno
import fcntl
import os
import struct
from pathlib import Path

LOOP_CTL_GET_FREE = 0x4C82
LOOP_CONFIGURE = 0x4C0A
LO_FLAGS_AUTOCLEAR = 4
LO_FLAGS_DIRECT_IO = 16
#: struct loop_config: u32 fd, u32 block_size, struct loop_info64 (232 bytes), u64 reserved[8].
_CONFIG = struct.Struct("=II 5Q4I64s64s32s2Q 8Q")
ATTEMPTS = 20


def attach(image: int) -> tuple[Path, int]:
    """Put a loop device before an open file; return its path and a descriptor.

    The caller mounts the device and then closes the descriptor; closing it without a mount frees the device.
    """
    with Path("/dev/loop-control").open("rb") as control:
        for _ in range(ATTEMPTS):
            path = Path(f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}")
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, LOOP_CONFIGURE, _config(image))
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:  # another process was quicker
                    raise
                continue
            return path, device
    raise OSError(errno.EBUSY, "no loop device could be had")


def _config(image: int) -> bytes:
    no_names = (b"", b"", b"")
    return _CONFIG.pack(image, 512, 0, 0, 0, 0, 0, 0, 0, 0, LO_FLAGS_AUTOCLEAR, *no_names, 0, 0, *([0] * 8))

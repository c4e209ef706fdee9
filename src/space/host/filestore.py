"""A filesystem of limited size for all that one machine writes.

It is an ext4 without a journal on a loop device over a sparse file that has no name (`O_TMPFILE`): unmounting frees
everything, and a crash between any two steps leaves at most a mount, which `sweep` finds.  `mkfs` runs once a size;
each filestore then starts as a copy of that image's few hundred kilobytes of data.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import struct
import zlib
from collections.abc import Collection
from pathlib import Path

from space.core.errors import InsufficientStorage
from space.host import linux, loop
from space.host.process import ProcessFailed, run

#: No journal (the content dies with the machine), no reserved blocks, inodes for the few files that a runtime makes:
#: nearly all of it is left for the guest.
MKFS = ("mkfs.ext4", "-q", "-F", "-N", "128", "-O", "^has_journal,^resize_inode", "-m", "0", "-E", "nodiscard")
MOUNT_OPTIONS = "discard,errors=remount-ro"
#: Drop all that is not on the disk, fs/ext4/ext4.h.
EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH = 0x8004587D, 2
#: Kept free on the host's disk beyond what a new filestore may need at once.
HEADROOM_MIB = 256
#: Sizes of which an image is kept; callers choose sizes, so the directory would fill up with one of each.
KEPT_TEMPLATES = 16


class FileStores:
    """The filestores of one instance, by slot index."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._is_open = False
        self._templates = asyncio.Lock()

    def path(self, index: int) -> Path:
        return self.directory / str(index)

    async def create(self, index: int, disk_mib: int) -> Path:
        """Mount an empty filestore of `disk_mib` and return its path; one that is there is replaced.

        Raises:
            InsufficientStorage: the host's disk is too full to begin with, or too small for any file of this size.
        """
        self._open()
        free = os.statvfs(self.directory)
        if free.f_bavail * free.f_frsize < HEADROOM_MIB << 20:
            raise InsufficientStorage(f"less than {HEADROOM_MIB} MiB are free for {self.directory}; free some space")
        template = await self._template(disk_mib)
        target = self.path(index)
        mounting = asyncio.ensure_future(asyncio.to_thread(self._mount, template, target))
        try:
            await asyncio.shield(mounting)
        except asyncio.CancelledError:
            # The thread goes on whatever becomes of its caller, and the number may be given to another meanwhile.
            await asyncio.shield(self._unmount_after(mounting, target))
            raise
        return target

    async def _unmount_after(self, mounting: "asyncio.Future[None]", target: Path) -> None:
        with contextlib.suppress(Exception):
            await mounting
        await asyncio.to_thread(_unmount, target)

    async def remove(self, index: int) -> None:
        """Unmount a filestore; all that was in it is gone.  Idempotent."""
        await asyncio.to_thread(_unmount, self.path(index))

    async def sweep(self, keep: Collection[int]) -> list[int]:
        """Remove every filestore but `keep`; return those removed."""
        self._open()
        kept = {self.path(index) for index in keep}
        gone = [path for path in self.directory.iterdir() if path.name.isdigit() and path not in kept]
        for path in gone:
            await asyncio.to_thread(_unmount, path)
        return sorted(int(path.name) for path in gone)

    async def aclose(self) -> None:
        """Remove every filestore (tests, uninstalling)."""
        await self.sweep(())

    def _open(self) -> None:
        """Make the directory, once.

        It needs no mount of its own: a runtime's processes leave the host's mounts behind as they start, so a
        filestore's end need not reach them (three machines show none of these mounts in their mountinfo).
        """
        if not self._is_open:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._is_open = True

    async def _template(self, disk_mib: int) -> Path:
        kind = zlib.crc32(" ".join(MKFS).encode())  # another version of SPACE may have made other ones
        image_mib = disk_mib + spare_mib(disk_mib)
        template = self.directory / f"ext4-{image_mib}-{kind:08x}.template"
        async with self._templates:
            if not template.exists():
                await self._make_template(template, image_mib)
            os.utime(template)
            kept = sorted(self.directory.glob("ext4-*.template"), key=lambda path: path.stat().st_mtime_ns)
            for path in kept[:-KEPT_TEMPLATES]:
                path.unlink()
        return template

    async def _make_template(self, template: Path, image_mib: int) -> None:
        unfinished = template.with_suffix(".new")
        try:
            with unfinished.open("wb") as image:
                image.truncate(image_mib << 20)
            await run([*MKFS, str(unfinished)])
            unfinished.replace(template)
        except OSError as error:
            if error.errno not in (errno.EFBIG, errno.ENOSPC, errno.EINVAL):
                raise
            raise InsufficientStorage(f"the host's disk cannot hold a file of {image_mib} MiB") from error
        except ProcessFailed as error:
            raise InsufficientStorage(f"a file system of {image_mib} MiB could not be made: {error.message}") from error
        finally:
            unfinished.unlink(missing_ok=True)

    def _mount(self, template: Path, target: Path) -> None:
        _unmount(target)
        target.mkdir(mode=0o700)
        image = os.open(self.directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            with template.open("rb") as source:
                copy_sparse(source.fileno(), image)
            device, descriptor = loop.attach(image)
            try:
                flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC | linux.MS_NOATIME
                linux.mount(str(device), target, "ext4", flags, MOUNT_OPTIONS)
            finally:
                os.close(descriptor)
        except OSError as error:
            target.rmdir()
            if error.errno == errno.ENOSPC:
                raise InsufficientStorage(f"the disk of {self.directory} is full; free some space") from error
            raise
        finally:
            os.close(image)
        (target / "lost+found").rmdir()


def spare_mib(disk_mib: int) -> int:
    """Return what the filesystem keeps for itself: its tables, and the 2 % or 16 MiB that ext4 holds back."""
    return 2 + min(16, disk_mib // 48 + 1)


def copy_sparse(source: int, target: int) -> None:
    """Copy a file's data and leave its holes holes."""
    size = os.fstat(source).st_size
    os.truncate(target, size)
    offset = 0
    while offset < size:
        try:
            begin = os.lseek(source, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole follows
                return
            raise
        offset = os.lseek(source, begin, os.SEEK_HOLE)
        while begin < offset:
            begin += os.copy_file_range(source, target, offset - begin, begin, begin)


def _unmount(target: Path) -> None:
    """Unmount whatever is there, even if something still uses it, and remove the mount point."""
    while target.is_mount():
        try:
            _forget_writes(target)
            linux.umount(target)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            linux.umount(target, linux.MNT_DETACH)
    with contextlib.suppress(FileNotFoundError):
        target.rmdir()


def _forget_writes(target: Path) -> None:
    """Let the filesystem drop what it has not written yet: it would be written only to be thrown away."""
    with contextlib.suppress(OSError):
        descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("=I", EXT4_GOING_FLAGS_NOLOGFLUSH))
        finally:
            os.close(descriptor)

"""An instance belongs to one data directory: a copy of it has the same instance id, hence the same names in the kernel.

A server on the copy would take the machines of the original for orphans and end them.  So whoever acts for an instance
holds a lock below /run, and writes there for which data directory.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from space.core.errors import Unavailable
from space.host.instance import Instance


@contextmanager
def claimed(instance: Instance, data_dir: Path) -> Iterator[None]:
    """Act for the instance in the body.

    Raises:
        Unavailable: another data directory has the same instance id, and is in use or exists still.
    """
    path = instance.run_dir / "data-dir"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        owner, mine = Path(os.fsdecode(os.pread(lock, 4096, 0))), data_dir.resolve()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if owner == mine:
                raise Unavailable(f"a server runs on {data_dir}; stop it first: space down") from None
            raise _copied(data_dir, owner) from None
        if owner != Path() and owner != mine and _id_of(owner) == instance.id:
            raise _copied(data_dir, owner)
        os.ftruncate(lock, 0)
        os.pwrite(lock, os.fsencode(mine), 0)
        yield
    finally:
        os.close(lock)


def _id_of(data_dir: Path) -> str | None:
    try:
        return (data_dir / "instance-id").read_text().strip()
    except OSError:
        return None


def _copied(data_dir: Path, owner: Path) -> Unavailable:
    return Unavailable(
        f"{data_dir} has the same instance-id as {owner}: it seems to be a copy, and a server on it would end the "
        f"other one's sandboxes; remove {data_dir}/instance-id to make it an instance of its own"
    )

"""Removes all that an instance made in the kernel: machines, namespaces, mounts, cgroups.

What lasts, the data directory, stays: its sandboxes are shown as failed when a server next starts on it.
"""

import shutil

from space.app.claim import claimed
from space.app.compose import runtimes_of
from space.config import Settings
from space.host.cgroup import Cgroups
from space.host.filestore import FileStores
from space.host.instance import Instance
from space.host.network import Network
from space.host.reaper import Reaper


async def tear_down(settings: Settings) -> int:
    """End every machine of the data directory's instance; return how many there were.  No server may run on it."""
    instance_file = settings.data_dir / "instance-id"
    if not instance_file.exists():
        return 0
    instance = Instance(instance_file.read_text().strip())
    with claimed(instance, settings.data_dir):
        async with Reaper():
            ended = [machine for runtime in runtimes_of(instance) for machine in await runtime.sweep(frozenset())]
            await Network(instance).remove()
            await FileStores(settings.data_dir / "filestores").aclose()
            Cgroups(instance).sweep(())
            shutil.rmtree(instance.run_dir, ignore_errors=True)
    return len(ended)

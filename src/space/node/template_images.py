"""Images of booted machines that nobody has used, one for each template and size: machines start from them.

`node/template-images/KEY/` holds `image.json` (0600) and what the runtime wrote.  It is made aside and renamed into
place: whole or absent.  They never leave this host, and any may be removed at any time: booting is always possible.
"""

import asyncio
import hashlib
import json
import os
from pathlib import Path

import anyio.to_thread
import structlog

from space.core.node import Capabilities, MachineOrder
from space.node.private_files import remove_tree, write_private
from space.node.record import Origin
from space.node.settings import NodeSettings

log = structlog.get_logger(__name__)

MACHINE = "machine"


class TemplateImages:
    """Finds images, and knows which are wanted; `TemplateImageMaker` makes them."""

    def __init__(self, settings: NodeSettings, capabilities: dict[str, Capabilities]) -> None:
        self.directory = settings.data_dir / "node" / "template-images"
        self._limit = settings.template_images
        self._agent = settings.agent_dir.resolve().name  #: named after its build
        self._capabilities = capabilities
        self._refused: set[str] = set()  #: keys that did not work out, until the node restarts
        self._wanted: dict[str, MachineOrder] = {}
        self._has_wanted = asyncio.Event()

    def _key(self, order: MachineOrder) -> str | None:
        """Name the image that `order` could start from; None if its runtime has none."""
        capabilities = self._capabilities.get(order.runtime)
        if not self._limit or capabilities is None or not capabilities.memory_snapshot:
            return None
        resources = order.resources
        size = [resources.vcpus, resources.memory_mib, resources.disk_mib]
        parts = [order.template_digest, order.runtime, size, capabilities.snapshot_format, self._agent]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    async def load(self) -> None:
        """Remove what a crash left half made, and what was made by another version."""
        await anyio.to_thread.run_sync(self._load)

    def _load(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        formats = {each.snapshot_format for each in self._capabilities.values()}
        for path in self.directory.iterdir():
            found = _read(path)
            if found is None or not self._limit or found["agent"] != self._agent or found["format"] not in formats:
                remove_tree(path)

    async def find(self, order: MachineOrder) -> Origin | None:
        """Return the image for `order`, if there is one."""
        key = self._key(order)
        if key is None or key in self._refused:
            return None
        path = self.directory / key
        found = _read(path)
        if found is None:
            return None
        os.utime(path)
        return Origin(path=path / MACHINE, token=str(found["token"]))

    async def drop(self, order: MachineOrder) -> None:
        """Remove an image that does not work, and make no other for now."""
        key = self._key(order)
        if key is not None:
            self._refused.add(key)
            await anyio.to_thread.run_sync(remove_tree, self.directory / key)

    # Making them

    def booted(self, order: MachineOrder) -> None:
        """A machine was booted for want of an image."""
        key = self._key(order)
        if key is not None and key not in self._refused:
            self._wanted[key] = order
            self._has_wanted.set()

    async def next_wanted(self) -> MachineOrder:
        """Wait until an image is wanted that there is none of."""
        while True:
            while self._wanted:
                key, order = self._wanted.popitem()
                if _read(self.directory / key) is None and key not in self._refused:
                    return order
            self._has_wanted.clear()
            await self._has_wanted.wait()

    def refuse(self, order: MachineOrder) -> None:
        """Making it failed: do not try again until the node restarts."""
        key = self._key(order)
        if key is not None:
            self._refused.add(key)

    async def keep(self, order: MachineOrder, source: Path, token: str) -> None:
        """Take over an image, a directory with `machine/` in it, and remove the ones that were not used for longest."""
        key = self._key(order)
        if key is not None:
            await anyio.to_thread.run_sync(self._keep, key, order, source, token)

    def _keep(self, key: str, order: MachineOrder, source: Path, token: str) -> None:
        formats = self._capabilities[order.runtime].snapshot_format
        write_private(source / "image.json", json.dumps({"token": token, "agent": self._agent, "format": formats}))
        remove_tree(self.directory / key)
        source.rename(self.directory / key)
        images = sorted(self.directory.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in images[self._limit :]:
            remove_tree(path)


def _read(path: Path) -> dict[str, object] | None:
    """Return what is known of an image; None if there is none."""
    try:
        found = json.loads((path / "image.json").read_text())
        return {name: found[name] for name in ("token", "agent", "format")}
    except (OSError, ValueError, KeyError, TypeError):
        return None

"""The names of everything that one data directory's SPACE makes in the kernel.

They derive from the instance id alone, so that a sweep after a crash finds what is its own and nothing else, and
two data directories live side by side.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Instance:
    """One SPACE installation on this host, by the content of its `instance-id` file."""

    id: str

    @property
    def tag(self) -> str:
        """Eight hex digits that begin all names: enough against chance, short enough for kernel names."""
        return hashlib.sha256(self.id.encode()).hexdigest()[:8]

    @property
    def gateway_netns(self) -> str:
        return f"space-{self.tag}-gw"

    def slot_netns(self, index: int) -> str:
        return f"space-{self.tag}-{index}"

    def slot_of_netns(self, name: str) -> int | None:
        """Return the slot that a namespace belongs to; None if it is not a slot of this instance."""
        match = re.fullmatch(rf"space-{self.tag}-([1-9][0-9]{{0,4}})", name)
        return int(match[1]) if match else None

    @property
    def cgroup(self) -> str:
        """The parent of all machines' cgroups, below each controller."""
        return f"/space-{self.tag}"

    def slot_cgroup(self, index: int) -> str:
        return f"{self.cgroup}/m{index}"

    @property
    def run_dir(self) -> Path:
        """Files that mean nothing after a reboot; short, because a unix socket's path may have 107 bytes."""
        return Path("/run/space") / self.tag

"""What a checkpoint was made with, beside runsc's own files in its directory.

A restored kernel opens the files of its mounts again by name and takes whatever it finds there, so they must be the
same: the template's (the node sees to that) and the agent's, whose programs the guest has in memory.  After an update
of SPACE a machine of before goes on with the agent that it had, as long as that is still beside the present one.

It also looks for the addresses that its sockets have, and does not start if one of a connected UDP socket is missing.
So a machine keeps a list of those that it has had.
"""

import ipaddress
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from space.core.errors import RuntimeFailed
from space.core.node import MachineSpec
from space.runtimes.gvisor import bundle

FILE = "origin.json"
ADDRESSES = "addresses.json"  #: in the bundle of a restored machine
MAX_ADDRESSES = 16
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Origin:
    """Of what machine a checkpoint is."""

    agent: str  #: the name of its agent's directory
    addresses: Sequence[str]  #: that it has had, the last one first

    def agent_dir(self, present: Path) -> Path:
        """Return the agent's directory that it needs, given the present one; raises `RuntimeFailed` if it is gone."""
        place = present.resolve()
        if place.name != self.agent:
            place = place.with_name(self.agent)
        if not place.is_dir():
            raise RuntimeFailed("the checkpoint was made with a guest agent that this host does not have")
        return place


def note(spec: MachineSpec, into: Path) -> None:
    """Write it beside a checkpoint of this machine."""
    directory = spec.state_dir / spec.machine_id
    agent = bundle.agent_dir(directory).resolve().name
    (into / FILE).write_text(json.dumps({"agent": agent, "addresses": addresses(spec)}))


def addresses(spec: MachineSpec) -> list[str]:
    """Return the addresses that a machine has had."""
    file = spec.state_dir / spec.machine_id / ADDRESSES
    earlier = json.loads(file.read_text()) if file.exists() else []
    return list(dict.fromkeys((spec.slot.guest_ip, *earlier)))[:MAX_ADDRESSES]


def inherit(spec: MachineSpec, origin: Origin) -> None:
    """Have a machine that is made from a checkpoint remember what addresses it had."""
    (spec.state_dir / spec.machine_id / ADDRESSES).write_text(json.dumps(list(origin.addresses)))


def read(snapshot: Path) -> Origin:
    """Return what was noted; raises `RuntimeFailed` for what is no checkpoint."""
    try:
        content = json.loads((snapshot / FILE).read_text())
        agent, found = content["agent"], [str(ipaddress.IPv4Address(each)) for each in content["addresses"]]
        if not _NAME.fullmatch(agent):
            raise ValueError("not the name of an agent")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RuntimeFailed(f"{snapshot.name} is no checkpoint: {error}") from error
    return Origin(agent, found[:MAX_ADDRESSES])

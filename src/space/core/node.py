"""Nodes and the machines on them, as the control plane and a node speak of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from space.core.ids import NodeId, SandboxId
from space.core.sandbox import Resources
from space.core.snapshot import SnapshotRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a runtime can do on this host, found by trying; `reasons` explains each "no" and its remedy."""

    runtime: str
    is_available: bool
    version: str | None = None
    pause: bool = False
    memory_snapshot: bool = False
    diff_snapshot: bool = False
    lazy_restore: bool = False
    snapshot_format: str | None = None  #: a snapshot starts only where this is the same: runtime, version, flags
    reasons: Mapping[str, str] = field(
        default_factory=dict
    )  #: capability name, or "available" → why not, how to get it


@dataclass(frozen=True, slots=True, order=True)
class MachineRef:
    """A machine by sandbox and generation: an older generation is refused, a newer one unknown."""

    sandbox_id: SandboxId
    generation: int

    @property
    def machine_id(self) -> str:
        """The runtime's id: one fixed length, because runsc takes prefixes for ambiguous (gvisor.md, trap 4)."""
        return f"{self.sandbox_id}{self.generation:06x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOrder:
    """Start this machine, or make sure that it runs."""

    ref: MachineRef
    runtime: str
    template_digest: str
    resources: Resources
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  #: the sandbox's, below each command's own
    restore: SnapshotRef | None = None  #: start from this moment, of this sandbox or of the one it was forked from


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place for one machine on this host: network and disk, prepared ahead.  Paths are on the host."""

    index: int
    netns: str  #: name below /run/netns that the machine runs in
    gateway_netns: str  #: name of the namespace from which the node dials the guest
    guest_ip: str
    gateway_ip: str
    prefix_length: int
    filestore: Path  #: directory on a size-limited filesystem, for everything the guest writes
    cgroup: str  #: cgroup path below each controller, e.g. `/space-3f9a/m7`


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """All that a runtime needs to start one machine; made by the node."""

    machine_id: str
    rootfs: Path  #: read-only, shared
    slot: Slot
    resources: Resources
    agent_dir: Path  #: `/.space` of DESIGN §5, mounted read-only into the guest
    token: str = field(repr=False)  #: the agent's; reaches the guest by a file or descriptor, never by argv
    agent_port: int
    state_dir: Path  #: the runtime's own files for this machine; 0700, emptied by `stop`
    default_user: str = "root"  #: the template's; whom the agent runs commands as unless they say otherwise
    hostname: str = "sandbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineHandle:
    """Enough to find a machine again after the node restarted; JSON-safe, kept on disk by the node."""

    runtime: str
    machine_id: str
    pid: int
    pid_start_time: int  #: field 22 of /proc/PID/stat, against reuse of the pid
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a machine ended.

    `reason` is `stopped`, `oom`, `runtime_exited`, `killed`, `recover_failed`, or `node_lost`: its host went down.
    """

    reason: str
    code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What placement needs to know of a node."""

    id: NodeId
    epoch: int
    runtimes: Mapping[str, Capabilities]
    vcpus: int
    memory_mib: int
    memory_available_mib: int
    disk_available_mib: int
    machines: int

"""What a node needs to know of its host; made by `app.py` from `space.config.Settings`."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The node's own settings.  Durations are in seconds."""

    data_dir: Path
    """`SPACE_DATA_DIR`; the node writes to `journals/` and `node/` below it."""

    agent_dir: Path
    """The guest agent and its interpreter (`/.space` in the guest), mounted read-only into each machine."""

    agent_port: int = 1
    """Guest port of the agent.  A privileged one: the workload cannot take it while the agent restarts."""

    journal_limit_mib: int = 4096
    """Size of one session's journal at which its writer waits for the readers, or its oldest part goes."""

    journal_keep_hours: float = 24
    """How long the journal of an ended process stays."""

    max_machines: int = 250
    """Machines on this host at most."""

    memory_reserve_mib: int = 512
    """Host memory that no machine may be placed into."""

    memory_overcommit: float = 1.0
    """How much more memory may be promised to machines than there is; 1: none."""

    create_deadline: float = 60
    """How long a machine may take from its order to its agent's first answer."""

    guest_deadline: float = 10
    """How long a call waits for a broken channel to be redialled before it is `GuestUnreachable`."""

    guest_silence: float = 20
    """A channel whose agent has not answered a ping for so long is dialled anew."""

    quiesce_seconds: float = 5
    """How long calls that have begun may hold up a pause or a checkpoint before they are cut off."""

    template_images: int = 0
    """Booted templates that are kept to start machines from, which is twice as fast as booting; 0: none."""

    idle_before_image: float = 3
    """How long nothing may have been starting before the image of a template is made."""

    sweep_seconds: float = 60
    """Time between two searches for what belongs to no machine."""

    file_concurrency: int = 16
    """Transfers at once in one machine, and as many other file operations; more wait."""

    max_processes: int = 1024
    """Commands that may run at once in one machine; each holds a file of the node open."""

    epoch: int = 1
    """The node's placement epoch, raised by whoever fences it."""

"""What machines are made with; put together by `agent.py`."""

from collections.abc import Mapping
from dataclasses import dataclass

from space.core.node import Capabilities
from space.core.ports import Clock, Runtime, Templates
from space.node.continuity import Continuity
from space.node.generations import Generations
from space.node.images import Images
from space.node.observations import Observations
from space.node.sessions import Sessions
from space.node.settings import NodeSettings
from space.node.slots import Slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one node."""

    settings: NodeSettings
    runtimes: Mapping[str, Runtime]
    capabilities: Mapping[str, Capabilities]  #: as they were last probed
    templates: Templates
    slots: Slots
    generations: Generations
    sessions: Sessions
    continuity: Continuity
    images: Images
    observations: Observations
    clock: Clock
    memory_mib: int  #: for all machines together

"""What machines are made with; put together by `agent.py`."""

from collections.abc import Mapping
from dataclasses import dataclass

from space.core.ports import Clock, Runtime, Templates
from space.node.generations import Generations
from space.node.observations import Observations
from space.node.sessions import Sessions
from space.node.settings import NodeSettings
from space.node.slots import Slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one node."""

    settings: NodeSettings
    runtimes: Mapping[str, Runtime]
    templates: Templates
    slots: Slots
    generations: Generations
    sessions: Sessions
    observations: Observations
    clock: Clock
    memory_mib: int  #: for all machines together

"""How many machines a pool should hold: what its operator set, what was asked for lately, and what memory allows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

_DECAY_SECONDS = 60.0  # after so long a create counts for 1/e


@dataclass(slots=True)
class Demand:
    """Creates of the last minute or so, each counting less the older it is.  Times are monotonic seconds."""

    _count: float = 0.0
    _at: float = 0.0

    def note(self, now: float) -> None:
        """Count one create."""
        self._count = self.level(now) + 1
        self._at = now

    def level(self, now: float) -> float:
        """Return the decayed count."""
        return self._count * math.exp(-max(0.0, now - self._at) / _DECAY_SECONDS)


@dataclass(slots=True)
class Figures:
    """What is measured of one kind of machine since the server started."""

    demand: Demand = field(default_factory=Demand)
    hits: int = 0  #: creates that got a parked machine
    misses: int = 0  #: creates that found none
    refills: int = 0
    refill_seconds: float = 0.0  #: of all refills, from the order to the agent's answer
    last_refill_seconds: float | None = None

    def created(self, now: float, *, is_hit: bool) -> None:
        """Count a create of this kind."""
        self.demand.note(now)
        if is_hit:
            self.hits += 1
        else:
            self.misses += 1

    def refilled(self, seconds: float) -> None:
        """Count a machine that was started and parked."""
        self.refills += 1
        self.refill_seconds += seconds
        self.last_refill_seconds = seconds

    @property
    def mean_refill_seconds(self) -> float | None:
        return self.refill_seconds / self.refills if self.refills else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How many machines of a kind are wanted."""

    min: int
    wanted: int  #: at present, `min` or more
    memory_mib: int  #: of one


def wanted(minimum: int, maximum: int, level: float) -> int:
    """Return how many machines to keep ready at this level of demand: as many as a minute took, within the bounds."""
    return min(max(minimum, math.floor(level + 0.5)), max(minimum, maximum))


def share_out(wishes: Sequence[Wish], budget_mib: int) -> list[int]:
    """Return how many machines each may have: all minima come before any demand, and the emptiest before the rest."""
    given = [0] * len(wishes)
    left = budget_mib
    for bounds in ([wish.min for wish in wishes], [wish.wanted for wish in wishes]):
        while True:
            fit = [
                index
                for index, wish in enumerate(wishes)
                if given[index] < bounds[index] and 0 < wish.memory_mib <= left
            ]
            if not fit:
                break
            index = min(fit, key=lambda each: (given[each] / bounds[each], each))
            given[index] += 1
            left -= wishes[index].memory_mib
    return given

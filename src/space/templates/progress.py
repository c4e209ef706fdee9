"""How a build tells how far it is: whoever shows it (CLI, API) passes a callable."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One step of a build; `fraction` is of the whole build and never goes back."""

    step: str  #: what is being done, for people: `installing packages`
    fraction: float  #: 0 … 1
    detail: str = ""


Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Take a report and show nothing."""

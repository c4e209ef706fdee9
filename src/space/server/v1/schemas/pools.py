"""Warm pools on the wire."""

from datetime import datetime
from typing import Annotated

from pydantic import Field, model_validator

from space.core.sandbox import Resources as CoreResources
from space.server.schemas import WHOLE, Asked, Shown
from space.server.v1.schemas.sandboxes import Resources, Runtime, TemplateReference

Size = Annotated[int, Field(ge=0, le=1000), WHOLE]


class PoolSet(Asked):
    """Makes a pool, or changes the size of the one with the same template, runtime and resources."""

    template: TemplateReference
    runtime: Runtime | None = None
    resources: Resources = Resources()
    min: Annotated[Size, Field(description="Machines that are always ready.")]
    max: Annotated[
        Size | None, Field(description="Machines that are ready when many are asked for; by default `min`.")
    ] = None

    @model_validator(mode="after")
    def _is_a_range(self) -> "PoolSet":
        if self.max is not None and self.max < self.min:
            raise ValueError("max is min or more")
        return self

    @property
    def core_resources(self) -> CoreResources:
        asked = self.resources
        return CoreResources(vcpus=asked.vcpus, memory_mib=asked.memory_mib, disk_mib=asked.disk_mib)


class PoolResources(Shown):
    """What each machine may use."""

    vcpus: int
    memory_mib: int
    disk_mib: int


class Refill(Shown):
    """From the order of a machine to its agent's answer, in seconds; null before the first."""

    last: float | None
    mean: float | None


class Pool(Shown):
    """Machines that are started ahead.  Counts are since the server started, or since the template changed."""

    template: str
    runtime: str
    resources: PoolResources
    min: int
    max: int
    wanted: Annotated[int, Field(description="Machines to keep ready at present demand, from `min` to `max`.")]
    ready: int
    starting: int
    hits: Annotated[int, Field(description="Creates that got a ready machine.")]
    misses: Annotated[int, Field(description="Creates that found none.")]
    refill_seconds: Refill
    configured: Annotated[bool, Field(description="Comes from `SPACE_POOLS`, and goes only with it.")]
    reason: Annotated[str | None, Field(description="Why it has fewer machines than wanted, if it is known.")]
    created_at: datetime


class PoolPage(Shown):
    """All pools."""

    items: list[Pool]
    next_cursor: str | None

"""New ids, from the clock and the kernel's randomness."""

import os

from space.core.ids import make_id
from space.core.ports import Clock


def new_id(prefix: str, clock: Clock) -> str:
    """Make an id of the kind that `prefix` names."""
    return make_id(prefix, unix_ms=int(clock.now().timestamp() * 1000), randomness=os.urandom(10))

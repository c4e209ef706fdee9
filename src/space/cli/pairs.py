"""Options of the form `K=V`."""

import os
from collections.abc import Sequence

from space.cli.failure import MISUSED, CommandError


def parse_pairs(items: Sequence[str] | None, option: str, *, inherit: bool = False) -> dict[str, str]:
    """Read `K=V` items; with `inherit`, a bare `K` takes the value of the local environment."""
    pairs: dict[str, str] = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        if not name or (not equals and not inherit):
            raise CommandError(f"{option} wants KEY=VALUE, got {item!r}", exit_code=MISUSED)
        if not equals:
            if name not in os.environ:
                raise CommandError(f"{option} {name}: not set in this environment", exit_code=MISUSED)
            value = os.environ[name]
        pairs[name] = value
    return pairs

"""Lengths of time on the command line."""

from datetime import timedelta

from space.cli.failure import MISUSED, CommandError

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str, *, option: str = "--expires") -> timedelta:
    """Read a length of time such as 90s, 15m, 12h or 30d."""
    number, unit = text[:-1], text[-1:]
    if unit not in UNITS or not number.isascii() or not number.isdigit() or len(number) > 9:
        raise CommandError(f"{option} wants a length of time such as 12h or 30d, got {text!r}", exit_code=MISUSED)
    return timedelta(seconds=int(number) * UNITS[unit])

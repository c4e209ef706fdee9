"""The connection of one command line to the server."""

from typing import TYPE_CHECKING

from space.cli import terminal

if TYPE_CHECKING:
    from space.sdk import Client, SpaceError


def connect() -> "Client":
    """Open a client that says so when it has to try again, so that nobody wonders at the wait."""
    from space.sdk import Client, RetryPolicy

    return Client(retry=RetryPolicy(on_retry=_say))


def _say(error: "SpaceError", delay: float) -> None:
    terminal.note(
        f"{error.message}; trying again in {delay:.0f} s" if delay >= 0.5 else f"{error.message}; trying again"
    )

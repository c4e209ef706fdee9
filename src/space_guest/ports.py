"""What the parts of the agent ask of one another.  For the type checker only: nothing imports this at run time."""

from __future__ import annotations

from typing import Any, Protocol

from space_guest.connection import Connection
from space_guest.process import Process, SpawnFailed
from space_guest.request import Request


class Link(Protocol):
    """Where a connection's frames go."""

    @property
    def has_room(self) -> bool:
        """Whether output may be written now; if not, the link's owner calls `Connection.room` later."""
        ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def finish(self) -> None:
        """Send what waits, then close; the owner calls `Connection.lost`."""
        ...


class Services(Protocol):
    """What a connection serves."""

    boot_id: str

    def authenticated(self, connection: Connection) -> None:
        """Make this the agent's connection; the one before it is closed."""
        ...

    def spawn(self, process_id: str, args: dict[str, Any]) -> Process:
        """Return the process of this id, started or on its way; raises `Refused`."""
        ...

    def find(self, process_id: str) -> Process | None: ...

    def handle(self, op: str, request: Request) -> None:
        """Serve any other request; raises `Refused`."""
        ...


class Order(Protocol):
    """What becomes of one order; each order gets `failed`, or `started` and then `exited`."""

    def started(self, os_pid: int) -> None: ...

    def failed(self, failure: SpawnFailed) -> None: ...

    def exited(self, status: int | None) -> None:
        """It ended with this wait status; None if nobody can know it any more."""
        ...

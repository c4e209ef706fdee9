"""A pool on the server for the time of a measurement."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from space.cli.failure import CommandError

if TYPE_CHECKING:
    from space.sdk import Client

LOOK_SECONDS = 0.05
DRAIN_SECONDS = 30.0
STUCK_SECONDS = 120.0  #: without one more machine, after which waiting is given up
PATH = "/v1/pools"


class WarmPool:
    """A pool of the base template and one size; afterwards the server has the pools that it had."""

    def __init__(self, client: "Client", size: int, *, memory_mib: int, runtime: str | None = None) -> None:
        self._client = client
        self._size = size
        self._asked_runtime = runtime
        self.runtime: str | None = None  #: that its machines have
        self._memory_mib = memory_mib
        self._before: list[Mapping[str, Any]] = []

    def __enter__(self) -> "WarmPool":
        self._before = list(self._client.get(PATH)["items"])
        self.runtime = self._set(self._size)["runtime"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        others = [pool for pool in self._before if pool["template"] == "base" and not pool["configured"]]
        mine = next((pool for pool in self._before if self._is_mine(pool) and not pool["configured"]), None)
        if mine is not None:
            self._set(mine["min"], mine["max"])
            return False
        self._set(0)
        self._drain()
        if not others:  # deleting it would take the others along
            self._client.transport.request("DELETE", f"{PATH}/base")
        return False

    def _drain(self) -> None:
        """Wait until its machines have gone: what is measured next, without a pool, must not find one of them."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while (pool := self.status())["ready"] + pool["starting"] > 0 and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)

    def _set(self, least: int, most: int | None = None) -> dict[str, Any]:
        body = {"template": "base", "min": least, "max": most, "resources": {"memory_mib": self._memory_mib}}
        if self._asked_runtime is not None:
            body["runtime"] = self._asked_runtime
        answer: dict[str, Any] = self._client.transport.request("PUT", PATH, json=body).json()
        return answer

    def _is_mine(self, pool: Mapping[str, Any]) -> bool:
        size = {"vcpus": 1, "memory_mib": self._memory_mib, "disk_mib": 2048}
        return bool(pool["template"] == "base" and pool["runtime"] == self.runtime and pool["resources"] == size)

    def status(self) -> Mapping[str, Any]:
        """Return the pool as the server shows it."""
        return next(pool for pool in self._client.get(PATH)["items"] if self._is_mine(pool))

    def fill(self) -> None:
        """Wait until all machines are ready."""
        most, since = -1, time.monotonic()
        while (pool := self.status())["ready"] < self._size:
            now = time.monotonic()
            if pool["ready"] > most:
                most, since = pool["ready"], now
            elif now - since > STUCK_SECONDS:
                raise CommandError(f"the pool stays at {most} of {self._size} machines: {pool['reason'] or 'unknown'}")
            time.sleep(LOOK_SECONDS)

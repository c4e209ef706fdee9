"""Failed logins: how many are allowed, by address and by account.

Kept in memory: a restart forgives, and a restart is slower than waiting.  An attempt is counted before the password
is checked, so that a burst in parallel gets no more tries than one in sequence; a success gives it back.
"""

import ipaddress
from collections import OrderedDict, deque
from dataclasses import dataclass

from space.core.errors import LimitExceeded
from space.core.ports import Clock

_MAX_TRACKED = 65_536  # addresses and accounts; beyond it the one that was quiet for longest is forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """So many failures in so many seconds."""

    failures: int
    seconds: float


class Attempts:
    """Counts failures under keys; a success takes its own attempt back."""

    def __init__(
        self,
        clock: Clock,
        *,
        by_address: Allowance = Allowance(failures=30, seconds=300),
        by_account: Allowance = Allowance(failures=10, seconds=300),
    ) -> None:
        self._clock = clock
        self._by_address = by_address
        self._by_account = by_account
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def begin(self, *, address: str | None, account: str) -> "Attempt":
        """Count one attempt.

        Raises:
            LimitExceeded: too many failed already; `retry_after` says how long to wait.
        """
        keys = {f"account {account}": self._by_account}
        if address is not None:
            keys[f"address {network_of(address)}"] = self._by_address
        now = self._clock.monotonic()
        waits = [self._wait(key, allowance, now) for key, allowance in keys.items()]
        if (wait := max(waits)) > 0:
            raise LimitExceeded(
                "too many failed logins; wait and try again", retry_after=max(1.0, wait), quota="login_attempts"
            )
        for key in keys:
            self._failures.setdefault(key, deque()).append(now)
            self._failures.move_to_end(key)
        while len(self._failures) > _MAX_TRACKED:
            self._failures.popitem(last=False)
        return Attempt(self, tuple(keys), now)

    def forgive(self, key: str, at: float) -> None:
        """Take one attempt back."""
        times = self._failures.get(key)
        if times is not None and at in times:
            times.remove(at)
            if not times:
                del self._failures[key]

    def _wait(self, key: str, allowance: Allowance, now: float) -> float:
        times = self._failures.get(key)
        if times is None:
            return 0
        while times and times[0] <= now - allowance.seconds:
            times.popleft()
        if len(times) < allowance.failures:
            return 0
        return times[0] + allowance.seconds - now


class Attempt:
    """One login under way; a failure unless it is told otherwise."""

    def __init__(self, attempts: Attempts, keys: tuple[str, ...], at: float) -> None:
        self._attempts = attempts
        self._keys = keys
        self._at = at

    def take_back(self) -> None:
        """Count it no longer: it succeeded, or nothing was tried."""
        for key in self._keys:
            self._attempts.forgive(key, self._at)


def network_of(address: str) -> str:
    """Return what one attacker can be taken to own: an IPv4 address, or an IPv6 /64."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)

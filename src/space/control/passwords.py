"""Passwords: argon2id, in threads, and as slow for an account that does not exist."""

import asyncio
import hmac
from collections.abc import Callable
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from space.core.errors import InvalidRequest, Unavailable

MIN_LENGTH = 12
MAX_LENGTH = 256
_MAX_WAITING = 64  # a few seconds' worth; a flood must not make a queue of minutes
T = TypeVar("T")


class Passwords:
    """Hashes and verifies, at most two at a time: each takes 19 MiB and a core for some tens of milliseconds."""

    # OWASP's second choice for argon2id: little memory, so that a burst of logins cannot exhaust a small host.
    _HASHER = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)

    def __init__(self, *, at_once: int = 2) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._waiting = 0
        self._nobody: str | None = None

    async def hash(self, password: str) -> str:
        """Hash a password that was checked by `check_password`."""
        return await self._in_thread(lambda: self._HASHER.hash(password))

    async def verify(self, password: str, hashed: str | None) -> bool:
        """Whether `password` is the one; with `hashed` None it does the same work and says no."""
        if self._nobody is None:
            self._nobody = await self.hash("nobody has this password")
        expected = hashed if hashed is not None else self._nobody
        is_right = await self._in_thread(lambda: self._is_right(expected, password[: MAX_LENGTH + 1]))
        return is_right and hashed is not None

    def _is_right(self, hashed: str, password: str) -> bool:
        try:
            return self._HASHER.verify(hashed, password.encode(errors="surrogatepass"))
        except (VerificationError, InvalidHashError):
            return False

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._waiting >= _MAX_WAITING:
            raise Unavailable("too many people sign in at once; try again in a moment", retry_after=2)
        self._waiting += 1
        try:
            async with self._slots:
                return await asyncio.to_thread(work)
        finally:
            self._waiting -= 1


def check_password(password: str, *, email: str) -> None:
    """Raise `InvalidRequest` for a password that may not be set."""
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise InvalidRequest(
            f"a password has {MIN_LENGTH} to {MAX_LENGTH} characters", field="password", limit=MAX_LENGTH
        )
    try:
        password.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("a password is Unicode text", field="password") from None
    if hmac.compare_digest(password.casefold().encode(), email.casefold().encode()):
        raise InvalidRequest("a password is not one's email address", field="password")

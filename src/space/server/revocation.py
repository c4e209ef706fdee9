"""Requests that go on while their caller's token is revoked: they are cut short within seconds.

Whatever takes long is meant: uploads, what is typed into a terminal, watches, downloads, programs that run in one
call.  A request that ends before the first look costs a timer and no look.
"""

import asyncio
from types import TracebackType

from space.control.tokens import Tokens
from space.core.errors import SpaceError, Unauthenticated
from space.core.ids import TokenId

LOOK_SECONDS = 3.0  #: with the five that a revocation elsewhere may take to be seen here, it is eight at worst


class CutWhenRevoked:
    """While it is entered, the task that entered it is cancelled once the token is revoked.

    Leaving then raises `Unauthenticated`.  The token's expiry ends no request that has begun.
    """

    __slots__ = ("_limit", "_timer", "_token_id", "_tokens", "_watch")

    def __init__(self, tokens: Tokens, token_id: TokenId) -> None:
        self._tokens = tokens
        self._token_id = token_id
        self._limit = asyncio.timeout(None)
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._begin)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()
        try:
            await self._limit.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise Unauthenticated("the token was revoked while the request went on") from None
        finally:
            if self._watch is not None:
                await asyncio.wait({self._watch})

    def _begin(self) -> None:
        self._watch = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while not await self._is_revoked():  # noqa: ASYNC110 - another process may take the right away
            await asyncio.sleep(LOOK_SECONDS)
        self._limit.reschedule(0)

    async def _is_revoked(self) -> bool:
        try:
            return await self._tokens.is_revoked(self._token_id)
        except SpaceError:  # the store does not answer: the next look will tell
            return False

"""The channel to one machine's guest agent: dialled until it answers, and again whenever it breaks."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import anyio
import structlog

from space.core.errors import GuestUnreachable, SpaceError
from space.core.ports import Clock, Machine
from space.node.guest import Deliver, Exited, Guest, Output

log = structlog.get_logger(__name__)

_QUIET_SECONDS = 0.02
_LEAVE_SECONDS = 2.0  #: for the agent to hang up before a pause or a checkpoint, and for what it had sent
Greet = Callable[[Guest], Awaitable[None]]

_FIRST_PAUSES = (0.001, 0.01)  #: seconds between attempts until the first answer, doubling: a boot takes some 200 ms
_LATER_PAUSES = (0.01, 1.0)


class GuestChannel:
    """Keeps a `Guest` connected while its machine runs; `run` is its task.

    `tokens` tells which secrets the agent may have, likeliest first: a crash may have come between telling the agent
    of a new one and noting that.
    """

    def __init__(
        self,
        machine: Machine,
        machine_id: str,
        *,
        port: int,
        tokens: Callable[[], Sequence[str]],
        silence: float,
        deliver: Deliver,
        greet: Greet,
        clock: Clock,
    ) -> None:
        self._machine = machine
        self._machine_id = machine_id
        self._port = port
        self._tokens = tokens
        self._silence = silence
        self._deliver = deliver
        self._greet = greet
        self._clock = clock
        self._guest: Guest | None = None
        self._connected = asyncio.Event()
        self._delivering = 0
        self._delivered = 0
        self._may_dial = asyncio.Event()
        self._may_dial.set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._scope = anyio.CancelScope()

    async def run(self) -> None:
        """Dial, serve, and dial again, for ever, except while it is held."""
        pauses = _FIRST_PAUSES
        while True:
            await self._may_dial.wait()
            self._is_idle.clear()
            with anyio.CancelScope() as self._scope:
                try:
                    await self._keep_connected(pauses)
                finally:
                    self._is_idle.set()
            pauses = _FIRST_PAUSES

    async def hold(self) -> None:
        """Take leave of the agent and make no connection until `go_on`.

        Returns once nobody is connected and what the agent had sent is delivered; cancelled, it may be called again.
        """
        self._may_dial.clear()
        guest, self._guest = self._guest, None
        self._connected.clear()
        try:
            if guest is not None:
                with suppress(GuestUnreachable):  # it may be hung: closing the connection is all that can be done
                    await guest.quiesce(seconds=_LEAVE_SECONDS)
                    with anyio.move_on_after(_LEAVE_SECONDS):
                        await self._is_idle.wait()
        finally:
            self._scope.cancel()
        await self._is_idle.wait()

    def stay_away(self) -> None:
        """Do not even begin to dial."""
        self._may_dial.clear()

    def go_on(self) -> None:
        """Connect again."""
        self._may_dial.set()

    async def _keep_connected(self, pauses: tuple[float, float]) -> None:
        first, longest = pauses
        pause = first
        while self._may_dial.is_set():
            try:
                guest = await self._dial()
            except (SpaceError, OSError, EOFError) as error:
                if first == _LATER_PAUSES[0]:
                    log.debug("guest.dial_failed", machine=self._machine_id, error=str(error))
                await anyio.sleep(pause)
                pause = min(2 * pause, longest)
                continue
            started = self._clock.monotonic()
            await self._serve(guest)
            first, longest = _LATER_PAUSES
            if not self._may_dial.is_set():
                return
            # One that breaks at once, e.g. because the guest sends nonsense, is not dialled in a tight loop.
            pause = first if self._clock.monotonic() - started > longest else min(2 * pause, longest)
            await anyio.sleep(pause)

    async def _dial(self) -> Guest:
        *others, last = self._tokens()
        for token in others:
            with suppress(GuestUnreachable):
                return await self._open(token)
        return await self._open(last)

    async def _open(self, token: str) -> Guest:
        stream = await self._machine.connect(self._port)
        return await Guest.open(stream, token=token, deliver=self._count_and_deliver)

    async def _count_and_deliver(self, event: Output | Exited) -> None:
        self._delivering += 1
        try:
            await self._deliver(event)
        finally:
            self._delivering -= 1
            self._delivered += 1

    async def _serve(self, guest: Guest) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch, guest)
                try:
                    await guest.run()
                finally:
                    tasks.cancel_scope.cancel()
        except* (SpaceError, OSError, EOFError, ValueError) as group:
            log.info("guest.channel_broke", machine=self._machine_id, error=str(group.exceptions[0]))
        finally:
            self._guest = None
            self._connected.clear()
            with anyio.CancelScope(shield=True):
                await guest.aclose()

    async def _watch(self, guest: Guest) -> None:
        """Greet the agent, let callers in, then make sure that it goes on answering."""
        with anyio.fail_after(self._silence):
            await self._greet(guest)
        self._guest = guest
        self._connected.set()
        while True:
            await anyio.sleep(self._silence / 2)
            await guest.ping(seconds=self._silence)

    async def guest(self, deadline: float) -> Guest:
        """Return the connected guest, waiting up to `deadline` seconds; raises `GuestUnreachable`."""
        if self._guest is None:
            with anyio.move_on_after(deadline):
                await self.wait_connected()
        if self._guest is None:
            raise GuestUnreachable(f"the agent of {self._machine_id} does not answer; try again")
        return self._guest

    async def wait_connected(self) -> None:
        """Return once the agent has answered and was greeted."""
        while self._guest is None:
            await self._connected.wait()

    async def drained(self, deadline: float) -> None:
        """Wait until what the agent sent before its machine ended is delivered, at most `deadline` seconds.

        A machine that dies closes no connection; so what has gone quiet is taken for drained.
        """
        with anyio.move_on_after(deadline):
            delivered = -1
            while self._delivering or delivered != self._delivered:
                delivered = self._delivered
                await anyio.sleep(_QUIET_SECONDS)

"""Frames between this node and one guest agent: authentication, dispatch, requests.

The agent is hostile until shown otherwise, and stays so: whatever it sends is bounded, belongs to a channel that this
end opened, and comes in order; at the first frame for which that is not so the connection ends with
`GuestUnreachable`, and what was delivered before stays right.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from space.core.errors import GuestUnreachable, SpaceError, Unavailable
from space.core.ports import ByteStream
from space.node.guest_errors import guest_error
from space_guest.handshake import NodeHandshake
from space_guest.protocol import (
    FROM_AGENT,
    VERSION,
    Decoder,
    Frame,
    Kind,
    ProtocolError,
    decode_object,
    encode_object,
)

GREETING_SECONDS = 10.0
ANSWER_SECONDS = 60.0
DELIVERY_SECONDS = 2.0  #: for what was received before the connection ended
MAX_CHANNELS = 8192
MAX_OUTGOING = 16 * 1024 * 1024  #: beyond it no request is begun
HIGH_WATER = 4 * 1024 * 1024  #: beyond it bytes for files and stdin wait, whatever credit the agent gave
MAX_UNREAD = 64 * 1024 * 1024  #: an agent that lets more pile up does not read, and is hung up on
#: Output of all processes together that may wait to be written down.  An agent keeps 32 MiB, and beyond it 64 KiB of
#: each stream; the windows of all its processes together would be gigabytes.
MAX_UNDELIVERED = 192 * 1024 * 1024
RECEIVE = 256 * 1024


class Channel(Protocol):
    """What a channel of this connection does with the agent's frames."""

    def frame(self, kind: Kind, payload: bytes) -> bool:
        """Take a frame; return whether it was the final one.  Raises `ProtocolError`."""
        ...

    def lost(self, error: SpaceError) -> None:
        """The connection has ended."""
        ...


class GuestConnection:
    """One authenticated connection to an agent."""

    def __init__(self, stream: ByteStream) -> None:
        self.boot_id = ""  #: changes whenever the agent starts anew, and with it all processes are gone
        self._stream = stream
        self._decoder = Decoder(frozenset({Kind.CHALLENGE}))
        self._channels: dict[int, Channel] = {}
        self._last_channel = 0
        self._outgoing = bytearray()
        self._has_outgoing = asyncio.Event()
        self._unsent = 0  #: bytes in `_outgoing` and on their way into the stream
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_unread = asyncio.Event()
        self._undelivered = 0
        self._error: SpaceError | None = None
        self._has_ended = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._owned: set[asyncio.Task[None]] = set()

    # Opening

    async def greet(self, token: str) -> None:
        """Authenticate both ends; raises `GuestUnreachable` and closes the stream if that fails."""
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                handshake = NodeHandshake(token)
                await self._stream.send(handshake.hello())
                await self._stream.send(handshake.answer(await self._expect(Kind.CHALLENGE)))
                welcome = decode_object(await self._expect(Kind.WELCOME))
            if welcome.get("version") != VERSION or not isinstance(boot_id := welcome.get("boot_id"), str):
                raise ProtocolError("the agent speaks another version")
            self.boot_id = boot_id[:64]
            self._decoder.accepts = FROM_AGENT - {Kind.CHALLENGE, Kind.WELCOME}
        except (ProtocolError, OSError, TimeoutError) as error:
            await self.aclose()
            raise GuestUnreachable(f"the guest agent could not be greeted: {_reason(error)}") from error
        except BaseException:
            await self.aclose()
            raise

    async def _expect(self, kind: Kind) -> bytes:
        self._decoder.accepts = frozenset({kind})
        while True:
            data = await self._stream.receive(RECEIVE)
            if not data:
                raise ProtocolError("it closed the connection")
            for _, _, payload in self._decoder.feed(data):
                return payload

    # Running

    async def run(self) -> None:
        """Receive until the stream ends; always ends with an exception.

        Raises:
            GuestUnreachable: the stream ended, or the agent broke the protocol.
            Exception: whatever `deliver` raised.
        """
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._write())
                group.create_task(self._watch_unread())
                try:
                    await self._read()
                except SpaceError:
                    # An agent's last words count although its end was read along with them.
                    if self._owned:
                        await asyncio.wait(self._owned, timeout=DELIVERY_SECONDS)
                    raise
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
        finally:
            self._group = None
            await self.aclose()

    async def aclose(self) -> None:
        """End the connection; what waits for an answer gets `GuestUnreachable`.  The machine's processes run on."""
        self._end(GuestUnreachable("the connection to the guest agent has ended"))
        await self._stream.aclose()

    async def _read(self) -> None:
        try:
            while data := await self._stream.receive(RECEIVE):
                for frame in self._decoder.feed(data):
                    self._dispatch(frame)
        except ProtocolError as error:
            self._end(GuestUnreachable(f"the guest agent broke the protocol: {error}"))
        except OSError as error:
            self._end(GuestUnreachable(f"the connection to the guest agent broke: {_reason(error)}"))
        self._end(GuestUnreachable("the guest agent closed the connection"))
        assert self._error is not None  # noqa: S101 - `_end` sets it
        raise self._error

    async def _write(self) -> None:
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            data = bytes(self._outgoing)
            self._outgoing.clear()
            try:
                await self._stream.send(data)
            except OSError:
                return  # what the agent had said before can still be received; then comes the end
            self._unsent -= len(data)
            if self._unsent <= HIGH_WATER:
                self._has_room.set()

    async def _watch_unread(self) -> None:
        await self._is_unread.wait()
        raise GuestUnreachable("the guest agent does not read what it is sent")

    def _dispatch(self, frame: Frame) -> None:
        kind, number, payload = frame
        channel = self._channels.get(number)
        if channel is None:
            raise ProtocolError("a frame for a channel that is not open")
        if channel.frame(kind, payload):
            self._channels.pop(number, None)

    def _end(self, error: SpaceError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._has_ended.set()
        self._has_room.set()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.lost(error)

    # For those who send

    def _check(self) -> None:
        if self._error is not None:
            raise GuestUnreachable(self._error.message)

    def _send(self, frame: bytes) -> None:
        """Queue a frame; an agent decides how many are due (credit, output to acknowledge), so the queue has an end."""
        if self._error is None and not self._is_unread.is_set():
            self._outgoing += frame
            self._unsent += len(frame)
            self._has_outgoing.set()
            if self._unsent > HIGH_WATER:
                self._has_room.clear()
            if self._unsent > MAX_UNREAD:
                self._is_unread.set()

    async def _room(self) -> None:
        """Return once bytes may be queued that nobody needs at once, or the connection has ended."""
        while not self._has_room.is_set():  # whoever was woken first may have filled it again
            await self._has_room.wait()

    def _hold(self, count: int) -> None:
        """Count output that waits in memory; raises `ProtocolError` if it is too much."""
        self._undelivered += count
        if self._undelivered > MAX_UNDELIVERED:
            raise ProtocolError("more output at once than an agent keeps")

    def _open(self, channel: Channel, op: str, args: Mapping[str, Any]) -> int:
        """Send a request on a new channel; raises `ValueError` if it is too large for a frame."""
        self._check()
        if len(self._channels) >= MAX_CHANNELS or len(self._outgoing) > MAX_OUTGOING:
            raise Unavailable("too many requests to this sandbox are under way; try again later")
        frame = encode_object(Kind.REQUEST, self._last_channel + 1, {"op": op, **args})
        self._last_channel += 1
        self._channels[self._last_channel] = channel
        self._send(frame)
        return self._last_channel

    def _own(self, task: Coroutine[Any, Any, None]) -> None:
        """Run a task as part of `run`; it ends no later."""
        if self._group is None:
            task.close()
            raise ProtocolError("nobody reads this connection")
        owned = self._group.create_task(task)
        self._owned.add(owned)
        owned.add_done_callback(self._owned.discard)

    async def _call(
        self, op: str, args: Mapping[str, Any], *, subject: str = "", seconds: float = ANSWER_SECONDS
    ) -> dict[str, Any]:
        """Send a request that has no bytes; return its answer."""
        answer = _Answer(subject)
        self._open(answer, op, args)
        try:
            async with asyncio.timeout(seconds):
                return await answer.future
        except TimeoutError:
            raise GuestUnreachable(f"the guest agent did not answer within {seconds:g} seconds") from None


class _Answer:
    """A channel that carries one answer; whoever waited may be gone by then."""

    def __init__(self, subject: str) -> None:
        self.future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._subject = subject

    def frame(self, kind: Kind, payload: bytes) -> bool:
        if kind not in (Kind.REPLY, Kind.ERROR):
            raise ProtocolError(f"{kind.name} is no answer")
        body = decode_object(payload)
        if self.future.done():
            return True
        if kind is Kind.REPLY:
            self.future.set_result(body)
        else:
            self.future.set_exception(guest_error(body, self._subject))
        return True

    def lost(self, error: SpaceError) -> None:
        if not self.future.done():
            self.future.set_exception(GuestUnreachable(error.message))
            self.future.exception()  # nobody may be waiting any more


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

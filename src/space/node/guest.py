"""The node's end of the channel to one guest agent: what the rest of the node uses."""

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from space.core.command import CommandSpec, Pty
from space.core.errors import GuestUnreachable, InvalidRequest, NotFound, PayloadTooLarge, Unsupported
from space.core.ids import ProcessId
from space.core.ports import ByteStream
from space.node.guest_errors import SpawnFailed
from space.node.guest_files import GuestFiles
from space.node.guest_process import Deliver, Exited, Output, ProcessChannel, ProcessStatus, status
from space_guest.protocol import ProtocolError

__all__ = ["Deliver", "Exited", "Guest", "Output", "ProcessStatus", "SpawnFailed"]

START_SECONDS = 90.0
FRESH_BYTES = 64
_MEASURE = re.compile(r"[a-z][a-z0-9_]{0,63}")


class Guest(GuestFiles):
    """An agent that has proved to be the one of this machine.

    `open`, then `run` in a task of its own; when that ends, open another and `attach` every process that was not seen
    to exit, with the offsets of the journal: the agent then sends exactly what is missing.
    """

    def __init__(self, stream: ByteStream, deliver: Deliver) -> None:
        super().__init__(stream)
        self._deliver = deliver
        self._processes: dict[ProcessId, ProcessChannel] = {}

    @classmethod
    async def open(cls, stream: ByteStream, *, token: str, deliver: Deliver) -> "Guest":
        """Authenticate both ends of `stream`, which the guest then owns.

        `deliver` is awaited for each event of a process in order; output for which it has returned is acknowledged,
        after which the agent forgets it.  While it does not return, the process's output stops at a window.

        Raises:
            GuestUnreachable: no agent answers, or not the one with this token.
        """
        guest = cls(stream, deliver)
        await guest.greet(token)
        return guest

    async def ping(self, *, seconds: float = 5.0) -> float:
        """Return the seconds that an answer took."""
        start = time.monotonic()
        await self._call("ping", {}, seconds=seconds)
        return time.monotonic() - start

    # The machine

    async def stats(self) -> Mapping[str, float]:
        """Return what the guest's kernel says of its use: `cpu_seconds`, `memory_bytes`, `disk_bytes`, `pids` …"""
        found = await self._call("stats", {})
        return {
            name: float(value)
            for name, value in list(found.items())[:64]
            if _MEASURE.fullmatch(name) and type(value) in (int, float) and 0 <= value < 2**63
        }

    async def set_clock(self, unix_seconds: float) -> None:
        """Set the guest's time of day; `Unsupported` where its kernel takes the host's."""
        await self._call("set_clock", {"unix_seconds": unix_seconds}, subject="the clock")

    async def add_entropy(self, data: bytes) -> None:
        """Mix up to 4096 random bytes into the guest's generator, so that clones of a machine part ways."""
        await self._call("add_entropy", {"hex": data.hex()}, subject="the random generator")

    async def personalise(
        self,
        *,
        hostname: str | None = None,
        env: Mapping[str, str] | None = None,
        token: str | None = None,
        disown: bool = False,
        entropy: bytes | None = None,
        unix_seconds: float | None = None,
    ) -> None:
        """Make a restored or parked machine another one, in one round trip; what is None stays.

        In any case it gets a new machine id and boot id, `entropy` in its generators (64 fresh bytes if None) and the
        time (this host's if None) where its kernel does not take the host's.  `env` lies below each command's own.
        The next connection must know the new token.  With `disown`, for a fork, the processes that it came with run on
        but are not listed any more; their output is dropped and their ends are told to nobody.

        Raises:
            InvalidRequest: one of them cannot be right; nothing was changed.
            Unsupported: its kernel does not let it be renamed; nothing was changed.
        """
        args = {
            "hostname": hostname,
            "env": None if env is None else dict(env),
            "token": token,
            "disown": disown,
            "hex": (os.urandom(FRESH_BYTES) if entropy is None else entropy).hex(),
            "unix_seconds": time.time() if unix_seconds is None else unix_seconds,
        }
        boot_id = (await self._call("personalise", args, subject="the machine's identity")).get("boot_id")
        if isinstance(boot_id, str):
            self.boot_id = boot_id[:64]
        if disown:
            self._disown()

    def _disown(self) -> None:
        """Forget what was attached; the agent has sent its last frame about it before it answered."""
        processes, self._processes = self._processes, {}
        for channel in processes.values():
            self._channels.pop(channel.number, None)
            channel.lost(NotFound(f"process {channel.process_id} belongs to nobody any more"))

    async def prewarm(self) -> None:
        """Have the agent ready to run the default user's first command as fast as any other.

        Returns once a first process has been started and has ended; harmless at any time.
        """
        with contextlib.suppress(Unsupported):  # an agent from before an update, in a machine that runs since then
            await self._call("prewarm", {})

    async def quiesce(self, *, seconds: float = 5.0) -> None:
        """Take leave before a checkpoint: returns once the agent has hung up, which ends `run`; then call `aclose`.

        All that it had sent was received.  Output that was not acknowledged is part of the checkpoint, and is sent
        again after `attach`.  Until the machine has been saved nobody may connect: a socket that is connected at that
        moment goes on being reported as ready to whoever waits for it in the restored machine.

        Raises:
            GuestUnreachable: the agent did not answer, or not in time.
        """
        with contextlib.suppress(Unsupported):
            await self._call("quiesce", {}, seconds=seconds)
            with contextlib.suppress(TimeoutError):  # closing it is enough for an agent that goes on listening
                async with asyncio.timeout(seconds):
                    await self._has_ended.wait()

    # Processes

    async def spawn(
        self,
        process_id: ProcessId,
        spec: CommandSpec,
        *,
        env: Mapping[str, str],
        default_user: str,
        offsets: Mapping[str, int] | None = None,
    ) -> int:
        """Start a process, or attach to it if this id was started before; return its pid in the guest.

        `env` lies below the spec's own.  `offsets` (stream → offset) as for `attach`.

        Raises:
            SpawnFailed: there is no such program, user or directory; nothing was started.
            InvalidRequest: a text holds a NUL byte or is not Unicode.
        """
        args: dict[str, Any] = {
            "argv": list(spec.argv),
            "env": {**env, **spec.env},
            "cwd": spec.cwd,
            "user": spec.user or default_user,
            "stdin": spec.stdin,
            "pty": None if spec.pty is None else [spec.pty.cols, spec.pty.rows],
            "timeout": spec.timeout_seconds,
        }
        for name in ("argv", "env", "cwd", "user"):
            check_text(name, args[name])
        return await self._bind("spawn", process_id, args, offsets or {}, is_terminal=spec.pty is not None)

    async def attach(self, process_id: ProcessId, *, offsets: Mapping[str, int]) -> int:
        """Have the output of a process, from `offsets` on, delivered over this connection; return its pid.

        Raises:
            NotFound: the agent does not know it.
            FailedPrecondition: the agent does not have output from there.
        """
        return await self._bind("attach", process_id, {}, offsets, is_terminal=None)

    async def _bind(
        self,
        op: str,
        process_id: ProcessId,
        args: Mapping[str, Any],
        offsets: Mapping[str, int],
        *,
        is_terminal: bool | None,
    ) -> int:
        channel = self._processes.get(process_id)
        if channel is None:
            channel = ProcessChannel(
                process_id,
                is_terminal=is_terminal,
                offsets=offsets,
                deliver=self._deliver,
                send=self._send,
                room=self._room,
                hold=self._hold,
                own=self._own,
            )
            try:
                channel.number = self._open(channel, op, {"process_id": process_id, "offsets": dict(offsets), **args})
            except ValueError as error:
                raise PayloadTooLarge("argv and env are too large together", limit=1024 * 1024) from error
            self._processes[process_id] = channel
        try:
            async with asyncio.timeout(START_SECONDS):
                return await asyncio.shield(channel.started)
        except TimeoutError:
            raise GuestUnreachable(f"the guest agent did not answer within {START_SECONDS:g} seconds") from None
        except BaseException:
            if channel.started.done() and channel.started.exception() is not None:
                self._processes.pop(process_id, None)
            raise

    async def processes(self) -> list[ProcessStatus]:
        """Return every process that the agent keeps: those that run, and those not yet forgotten."""
        found = (await self._call("processes", {})).get("processes")
        if not isinstance(found, list):
            raise GuestUnreachable("the guest agent broke the protocol: no list of processes")
        try:
            return [status(item) for item in found]
        except ProtocolError as error:
            raise GuestUnreachable(f"the guest agent broke the protocol: {error}") from error

    async def forget(self, process_id: ProcessId) -> None:
        """Let the agent drop an ended process whose exit is in the journal; succeeds if it has none."""
        await self._call("forget", {"process_id": process_id}, subject=process_id)
        self._processes.pop(process_id, None)

    async def signal(self, process_id: ProcessId, signal: str) -> None:
        """Send `SIGTERM`, `SIGKILL` … to the process group; succeeds if the process has ended."""
        await self._call("signal", {"process_id": process_id, "signal": signal}, subject=process_id)

    async def resize(self, process_id: ProcessId, size: Pty) -> None:
        """Change the size of its terminal; `FailedPrecondition` if it has none."""
        await self._call("resize", {"process_id": process_id, "cols": size.cols, "rows": size.rows}, subject=process_id)

    async def write_stdin(self, process_id: ProcessId, data: bytes) -> None:
        """Return once the process's pipe has taken all of `data`; `FailedPrecondition` if it takes no more."""
        await self._attached(process_id).write_stdin(data)

    async def close_stdin(self, process_id: ProcessId) -> None:
        """Let the process read end of file; succeeds if it was closed before."""
        await self._attached(process_id).close_stdin()

    def _attached(self, process_id: ProcessId) -> ProcessChannel:
        channel = self._processes.get(process_id)
        if channel is None:
            self._check()
            raise NotFound(f"process {process_id} is not attached")
        return channel


def check_text(field: str, value: object) -> None:
    """Raise `InvalidRequest` for text that cannot be passed to a program: NUL bytes, lone surrogates."""
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidRequest(f"{field} holds a NUL byte", field=field)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"{field} is not valid Unicode", field=field) from None
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if not name or "=" in name:
                raise InvalidRequest(f"{field} holds a name that is empty or has a =", field=field)
            check_text(field, name)
            check_text(field, item)
    elif isinstance(value, list):
        for item in value:
            check_text(field, item)

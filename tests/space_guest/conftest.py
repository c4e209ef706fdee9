"""A real agent as a process of this machine, on a loopback port, and a node's end of its channel."""

import asyncio
import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from space.core.command import CommandSpec
from space.core.ids import ProcessId
from space.node.guest import Exited, Guest, Output

SOURCE = Path(__file__).parents[2] / "src"
TOKEN = "a token of this test only"
START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from space_guest.agent import main; sys.exit(main(sys.argv[1:]))"
)


class SocketStream:
    """A `ByteStream` over a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self._reader.read(max_bytes)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class Agent:
    """One agent process."""

    def __init__(self, folder: Path, *, user: str = "root", run_as: int | None = None) -> None:
        self.folder = folder
        self._streams: list[SocketStream] = []
        token = folder / "token"
        token.write_text(TOKEN)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        source = SOURCE
        if run_as is not None:
            os.chown(token, run_as, run_as)
            source = folder / "source"  # the checkout may lie where only root reads
            shutil.copytree(SOURCE / "space_guest", source / "space_guest")
        self.log = (folder / "log").open("wb")
        python = shutil.which("python3.11", path="/usr/bin") or sys.executable
        self.process = subprocess.Popen(
            [python, "-I", "-S", "-B", "-X", "utf8", "-c", START, str(source), str(self.port), str(token), user],
            stderr=self.log,
            cwd="/",
            user=run_as,
            group=run_as,
            extra_groups=[] if run_as is not None else None,
        )

    async def connect(self) -> SocketStream:
        for attempt in itertools.count():
            try:
                stream = SocketStream(*await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20))
                self._streams.append(stream)
                return stream
            except OSError:
                if attempt > 200 or self.process.poll() is not None:
                    raise
                await asyncio.sleep(0.05)
        raise AssertionError

    async def stop(self) -> None:
        for stream in self._streams:
            await stream.aclose()
        self.process.kill()
        self.process.wait()
        self.log.close()

    @property
    def complaints(self) -> str:
        """What the agent printed: tracebacks, so nothing if all is well."""
        return (self.folder / "log").read_text()

    @property
    def resident_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])


class Recorder:
    """Stands for the journals: takes events, checks that nothing is lost, doubled or out of order."""

    def __init__(self) -> None:
        self.output: dict[tuple[str, str], bytearray] = {}
        self.exits: dict[str, Exited] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self._changed = asyncio.Condition()

    async def deliver(self, event: Output | Exited) -> None:
        await self.gate.wait()
        if isinstance(event, Output):
            assert event.process_id not in self.exits
            kept = self.output.setdefault((event.process_id, event.stream), bytearray())
            assert event.offset == len(kept)
            kept += event.data
        else:
            assert event.process_id not in self.exits
            self.exits[event.process_id] = event
        async with self._changed:
            self._changed.notify_all()

    def offsets(self, process_id: str) -> dict[str, int]:
        return {stream: len(data) for (owner, stream), data in self.output.items() if owner == process_id}

    def text(self, process_id: str, stream: str = "stdout") -> bytes:
        return bytes(self.output.get((process_id, stream), b""))

    async def until(self, is_so) -> None:
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(is_so)

    async def exit(self, process_id: str) -> Exited:
        await self.until(lambda: process_id in self.exits)
        return self.exits[process_id]


class Session:
    """A connected guest with a recorder behind it."""

    def __init__(self, agent: Agent, recorder: Recorder) -> None:
        self.agent = agent
        self.recorder = recorder
        self.guest: Guest
        self._count = itertools.count(1)

    def next_id(self) -> ProcessId:
        return ProcessId(f"prc{next(self._count):026d}")

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Guest]:
        self.guest = await Guest.open(await self.agent.connect(), token=TOKEN, deliver=self.recorder.deliver)
        task = asyncio.create_task(self.guest.run())
        try:
            yield self.guest
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    async def start(self, *argv: str, user: str = "root", env: dict[str, str] | None = None, **options) -> ProcessId:
        process_id = self.next_id()
        spec = CommandSpec(argv=argv, **options)
        await self.guest.spawn(process_id, spec, env=env or {}, default_user=user)
        return process_id

    async def run(self, *argv: str, **options) -> tuple[Exited, bytes, bytes]:
        process_id = await self.start(*argv, **options)
        exited = await self.recorder.exit(process_id)
        return exited, self.recorder.text(process_id), self.recorder.text(process_id, "stderr")


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    found = Agent(tmp_path, user=_user())
    yield found
    await found.stop()
    assert found.complaints == ""


@pytest.fixture
async def session(agent: Agent) -> AsyncIterator[Session]:
    session = Session(agent, Recorder())
    async with session.connected():
        yield session


def _user() -> str:
    return "root" if os.getuid() == 0 else str(os.getuid())

import asyncio
import os

import anyio
import pytest
from tests.node.harness import World, eventually, order, output, read, shell

from space.core.journal import RecordKind
from space.core.ports import ByteStream

pytestmark = pytest.mark.anyio


class LastWords:
    """A stream that holds back what the agent says, to hand it over at once with the end."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.is_holding = False
        self.held = 0
        self.released = asyncio.Event()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self._stream.receive(max_bytes)
        if not self.is_holding:
            return data
        self.held += len(data)
        chunks = [data]
        while not self.released.is_set():
            with anyio.move_on_after(0.01):
                chunks.append(await self._stream.receive(max_bytes))
                self.held += len(chunks[-1])
        whole, self.chunks = b"".join(chunks), b""
        self.receive = self._ended  # type: ignore[method-assign]
        return whole

    async def _ended(self, max_bytes: int = 65536) -> bytes:
        return b""

    async def send(self, data: bytes) -> None:
        if self.released.is_set():
            raise ConnectionResetError("the machine is gone")
        await self._stream.send(data)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def test_what_a_machine_said_before_it_died_is_in_the_journal(world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        live = node._machines.get(machine.ref)
        guest = await live.guest()
        await guest._stream.aclose()  # the next connection goes through our hands
        streams: list[LastWords] = []
        connect = live.machine.connect

        async def connect_held(port: int) -> ByteStream:
            streams.append(LastWords(await connect(port)))
            return streams[-1]

        live.machine.connect = connect_held  # type: ignore[method-assign]
        await eventually(lambda: bool(streams))
        process = shell("sleep 0.2; head -c 300000 /dev/zero | tr '\\0' x; sleep 600")
        await node.start_process(machine.ref, process)
        streams[0].is_holding = True
        await eventually(lambda: streams[0].held > 300_000)
        world.host.unreachable.add(machine.ref.machine_id)
        streams[0].released.set()
        world.host.exit(machine.ref.machine_id, "oom")
        records = await read(node, process.session_id)
        assert output(records) == b"x" * 300_000
        assert records[-1].kind is RecordKind.SANDBOX_LOST


async def test_a_connection_that_greets_wrongly_is_no_agent(world: World) -> None:
    """Programs in the guest may take the agent's port while it is away; without the token they are nobody."""

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with_nonsense = await reader.read(100)
        writer.write(with_nonsense * 3 + os.urandom(1000))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(impostor, "127.0.0.1", 0)
    async with server, world.running(create_deadline=0.5) as node:
        machine = order()
        guest = world.agents.guest

        def listen_elsewhere(spec: object) -> object:
            serve = guest(spec)  # type: ignore[arg-type]
            world.agents.ports[machine.ref.machine_id] = server.sockets[0].getsockname()[1]
            return serve

        world.host.guest = listen_elsewhere  # type: ignore[assignment]
        with pytest.raises(Exception, match="did not answer"):
            await node.ensure(machine)
        assert await node.report() == {}

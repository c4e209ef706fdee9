"""An agent that lies: it can harm its own machine's commands only."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.node.conftest import Ids
from tests.node.harness import WallClock, World, command, later, order, snapshot, suspend

from space.core.command import CommandSpec
from space.core.errors import GuestUnreachable, SpaceError
from space.core.ids import ProcessId
from space.core.node import MachineRef
from space.core.ports import ProcessOrder
from space.node.agent import Node
from space.node.guest import Exited, Output
from space.node.journal.folder import JournalFolder
from space.node.observations import Observations
from space.node.sessions import Session, Sessions
from space.testing.guest import FakeGuest
from space.testing.runtime import FakeHost, FakeRuntime
from space_guest.process import Process
from space_guest.request import Refused, Request

pytestmark = pytest.mark.anyio


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    made = Sessions(JournalFolder(tmp_path / "journals", limit_bytes=1 << 30), Observations(), WallClock())
    made.load()
    return made


def begin(sessions: Sessions, ids: Ids, ref: MachineRef) -> tuple[ProcessId, Session]:
    order = ProcessOrder(process_id=ids.process(), session_id=ids.session(), spec=CommandSpec(argv=("true",)))
    _, session = sessions.open(ref, order)
    assert session is not None
    session.began.set()
    return order.process_id, session


async def test_it_cannot_write_to_a_command_of_another_machine(sessions: Sessions, ids: Ids) -> None:
    mine, theirs = ids.ref(), ids.ref()
    process_id, session = begin(sessions, ids, theirs)
    before = session.journal.end
    await sessions.deliver(mine, Output(process_id, "stdout", 0, b"forged"))
    await sessions.deliver(mine, Exited(process_id, 0, None, None, 0, 0))
    await sessions.deliver(MachineRef(theirs.sandbox_id, 2), Output(process_id, "stdout", 0, b"forged"))
    assert session.journal.end == before
    assert not session.journal.is_final


async def test_it_cannot_leave_bytes_out_or_use_streams_that_are_not_there(sessions: Sessions, ids: Ids) -> None:
    ref = ids.ref()
    process_id, session = begin(sessions, ids, ref)
    with pytest.raises(ValueError, match="only 0 bytes"):
        await sessions.deliver(ref, Output(process_id, "stdout", 10, b"late"))
    with pytest.raises(ValueError, match="does not have"):
        await sessions.deliver(ref, Output(process_id, "pty", 0, b"x"))
    assert session.journal.written == (0, 0, 0)


async def test_it_cannot_add_to_a_command_that_has_ended(sessions: Sessions, ids: Ids) -> None:
    ref = ids.ref()
    process_id, session = begin(sessions, ids, ref)
    await sessions.deliver(ref, Exited(process_id, 3, None, None, 0, 0))
    end = session.journal.end
    await sessions.deliver(ref, Output(process_id, "stdout", 0, b"late"))
    await sessions.deliver(ref, Exited(process_id, 0, None, None, 0, 0))
    assert session.journal.end == end
    assert session.journal.status().exit_code == 3


async def test_an_end_that_it_cannot_tell_is_lost_not_invented(sessions: Sessions, ids: Ids) -> None:
    ref = ids.ref()
    process_id, session = begin(sessions, ids, ref)
    await sessions.deliver(ref, Exited(process_id, None, None, "lost", 0, 0))
    status = session.journal.status()
    assert (status.is_lost, status.exit_code, status.reason) == (True, None, "process_lost")


async def test_output_before_the_start_waits_for_it(sessions: Sessions, ids: Ids) -> None:
    ref = ids.ref()
    process_id, session = begin(sessions, ids, ref)
    session.began.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sessions.deliver, ref, Output(process_id, "stdout", 0, b"early"))
        await anyio.sleep(0.02)
        assert session.journal.written == (0, 0, 0)
        session.began.set()
    assert session.journal.written == (5, 0, 0)


class Stubborn(FakeGuest):
    """Refuses to start anything, each time with another code."""

    def spawn(self, process_id: str, args: dict[str, Any]) -> Process:
        raise Refused(str(args["argv"][0]))


async def test_whatever_it_refuses_a_start_with_only_that_command_fails(world: World) -> None:
    node = world.node()
    node._runtimes["fake"] = FakeRuntime(FakeHost(Stubborn.answer))  # type: ignore[index]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.run)
        machine = order()
        await node.ensure(machine)
        guest = await node._machines.get(machine.ref).guest()
        for code in ("conflict", "not_found", "failed_precondition", "rate_limited", "forbidden", "nonsense"):
            with anyio.fail_after(5), pytest.raises(SpaceError):
                await node.start_process(machine.ref, command(code))
        assert await node._machines.get(machine.ref).guest() is guest
        tasks.cancel_scope.cancel()


class Clinging(FakeGuest):
    """Does not take leave: it answers and stays, or does not even answer."""

    answers = True

    def handle(self, op: str, request: Request) -> None:
        if op != "quiesce":
            super().handle(op, request)
        elif self.answers:
            request.reply({})


class Deaf(Clinging):
    answers = False


class Keeping(FakeGuest):
    """Says that it has become another, and stays who it was: token, name and processes."""

    def _personalise(self, request: Request) -> None:
        request.reply({"boot_id": "x" * 1000})


@asynccontextmanager
async def node_with(world: World, agent: type[FakeGuest]) -> AsyncIterator[Node]:
    node = world.node()
    node._runtimes["fake"] = FakeRuntime(FakeHost(agent.answer))  # type: ignore[index]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.run)
        yield node
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("agent", [Clinging, Deaf])
async def test_it_cannot_hold_a_suspend_up_by_not_taking_leave(world: World, agent: type[FakeGuest]) -> None:
    async with node_with(world, agent) as node:
        machine = order()
        await node.ensure(machine)
        with anyio.fail_after(30):
            restore = await suspend(node, machine.ref)
            await node.ensure(later(machine, restore))


async def test_a_child_that_keeps_the_token_of_its_source_reaches_nothing_and_is_not_talked_to(world: World) -> None:
    async with node_with(world, Keeping) as node:
        source = order()
        await node.ensure(source)
        process = command("sleep", "600")
        await node.start_process(source.ref, process)
        restore = await snapshot(node, source.ref)
        child = replace(order(), restore=restore)
        await node.ensure(child)
        live = node._machines.get(child.ref)
        assert [each.journal.head.process_id for each in node._sessions.of(child.ref.sandbox_id)] == []
        await live.leave()
        live.come_back()
        with pytest.raises(GuestUnreachable):
            await live.guest(deadline=0.3)
        status = await node.session_status(process.session_id)
        assert status is not None
        assert status.exited_at is None
        await (await node._machines.get(source.ref).guest()).ping()

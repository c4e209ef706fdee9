"""Requests to sandboxes that sleep: woken once for all who ask, or refused."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from space.core.command import CommandSpec, ProcessState
from space.core.errors import (
    CapacityUnavailable,
    FailedPrecondition,
    InvalidTransition,
    NotFound,
    RuntimeFailed,
)
from space.core.ids import ProcessId, SessionId
from space.core.journal import JournalRecord, RecordKind
from space.core.lifecycle import State
from space.core.operation import Status
from space.core.sandbox import AutoLifecycle, OnIdle, Sandbox, SandboxSpec
from space.testing.commands import CommandPlane, command, command_plane
from space.testing.control_plane import OTHER_PROJECT, principal
from space.testing.node import FakeNode
from space.testing.node_files import FileNode

pytestmark = pytest.mark.anyio

WAKING = AutoLifecycle(idle_seconds=3600, on_idle=OnIdle.NONE, wake_on_request=True)


async def asleep(parts: CommandPlane, state: State, *, lifecycle: AutoLifecycle = WAKING) -> Sandbox:
    sandbox = await running(parts, lifecycle)
    sandboxes = parts.plane.sandboxes
    ask = sandboxes.pause if state is State.PAUSED else sandboxes.suspend
    await ended(parts, (await ask(parts.call("sleep"), sandbox.id)).operation.id)
    await parts.plane.idle()
    return await sandboxes.get(parts.who, sandbox.id)


async def running(parts: CommandPlane, lifecycle: AutoLifecycle = WAKING) -> Sandbox:
    sandbox, operation = await parts.plane.sandboxes.create(
        parts.call("createSandbox"), SandboxSpec(template="base", auto_lifecycle=lifecycle)
    )
    await ended(parts, operation.id)
    return await parts.plane.sandboxes.get(parts.who, sandbox.id)


async def ended(parts: CommandPlane, operation_id: str) -> None:
    operation = await parts.plane.operations.wait(parts.who, operation_id, seconds=10)
    assert operation.status is Status.SUCCEEDED, operation


def wakes(parts: CommandPlane) -> list[tuple[str]]:
    return parts.plane.store._reader.rows("SELECT status FROM operations WHERE kind = 'wake'")


async def create_one(parts: CommandPlane, sandbox: Sandbox) -> object:
    return await parts.commands.create(parts.call(), sandbox.id, command())


async def exec_one(parts: CommandPlane, sandbox: Sandbox) -> object:
    executing = asyncio.create_task(parts.commands.exec(parts.call("exec"), sandbox.id, command()))
    node = parts.plane.node
    async with asyncio.timeout(10):
        while not node.sessions and not executing.done():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    for session_id in node.sessions:
        node.exit_process(session_id, 0)
    return await executing


async def write_one(parts: CommandPlane, sandbox: Sandbox) -> object:
    async def source() -> AsyncIterator[bytes]:
        yield b"x"

    return await parts.files.write(parts.call("writeFile"), sandbox.id, "/a", source())


async def list_some(parts: CommandPlane, sandbox: Sandbox) -> object:
    return await parts.files.list(parts.who, sandbox.id, "/")


Request = Callable[[CommandPlane, Sandbox], Awaitable[object]]
REQUESTS: list[Request] = [create_one, exec_one, write_one, list_some]


@pytest.mark.parametrize("state", [State.PAUSED, State.SUSPENDED])
@pytest.mark.parametrize("request_one", REQUESTS)
async def test_a_request_wakes_a_sandbox_that_asked_for_it_and_is_served(
    tmp_path: Path, state: State, request_one: Request
) -> None:
    async with command_plane(tmp_path, node=FileNode()) as parts:
        sandbox = await asleep(parts, state)
        await request_one(parts, sandbox)
        assert (await parts.plane.sandboxes.get(parts.who, sandbox.id)).state is State.RUNNING
        (entry,) = await parts.audited(action="wakeSandbox")
        assert (entry.principal, entry.target) == (parts.who.id, sandbox.id)


@pytest.mark.parametrize("state", [State.PAUSED, State.SUSPENDED])
@pytest.mark.parametrize("request_one", REQUESTS)
async def test_a_request_to_any_other_sleeping_sandbox_is_refused_and_is_no_use_of_it(
    tmp_path: Path, state: State, request_one: Request
) -> None:
    async with command_plane(tmp_path, node=FileNode()) as parts:
        sandbox = await asleep(parts, state, lifecycle=AutoLifecycle(on_idle=OnIdle.NONE))
        await parts.activity.flush()
        before = await parts.plane.sandboxes.get(parts.who, sandbox.id)
        with pytest.raises(InvalidTransition) as caught:
            await request_one(parts, sandbox)
        assert caught.value.details["current_state"] == state
        await parts.activity.flush()
        assert await parts.plane.sandboxes.get(parts.who, sandbox.id) == before
        assert wakes(parts) == []


async def test_twenty_requests_at_once_share_one_wake(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await asleep(parts, State.SUSPENDED)
        await asyncio.gather(*(create_one(parts, sandbox) for _ in range(20)))
        assert wakes(parts) == [("succeeded",)]
        assert [ref.generation for ref in parts.plane.node.restored] == [2]
        assert len(await parts.audited(action="wakeSandbox")) == 1


async def test_requests_during_a_suspend_wait_for_it_and_then_share_one_wake(tmp_path: Path) -> None:
    node = FakeNode()
    async with command_plane(tmp_path, node=node) as parts:
        sandbox = await running(parts)
        gate = node.hold("upload")
        suspend = (await parts.plane.sandboxes.suspend(parts.call("suspendSandbox"), sandbox.id)).operation
        await gate.entered.wait()
        requests = [asyncio.create_task(create_one(parts, sandbox)) for _ in range(10)]
        await asyncio.sleep(0.05)
        assert not any(request.done() for request in requests)
        gate.open()
        await asyncio.gather(*requests)
        await ended(parts, suspend.id)
        assert wakes(parts) == [("succeeded",)]


@pytest.mark.parametrize("state", [State.PAUSED, State.SUSPENDED])
async def test_a_wake_that_is_just_over_does_not_stand_in_for_the_next(tmp_path: Path, state: State) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await asleep(parts, state)
        over = asyncio.create_task(asyncio.sleep(0))
        await over
        parts.awake._waking[sandbox.id] = over  # as in the moment between a task's end and its callbacks
        async with parts.awake.using(parts.call(), sandbox.id):
            assert (await parts.plane.get(sandbox.id)).state is State.RUNNING


async def test_requests_during_a_suspend_that_fails_are_served_without_a_wake(tmp_path: Path) -> None:
    node = FakeNode()
    async with command_plane(tmp_path, node=node, max_attempts=1) as parts:
        sandbox = await running(parts)
        gate = node.hold("checkpoint")
        await parts.plane.sandboxes.suspend(parts.call("suspendSandbox"), sandbox.id)
        await gate.entered.wait()
        requests = [asyncio.create_task(create_one(parts, sandbox)) for _ in range(5)]
        await asyncio.sleep(0.02)
        node.fail("upload", RuntimeFailed("no"))
        gate.open()
        await asyncio.gather(*requests)
        assert wakes(parts) == []
        assert not node.is_stopped(sandbox.id)


async def test_a_wake_that_fails_is_the_error_of_all_who_waited_and_the_next_request_tries_again(
    tmp_path: Path,
) -> None:
    node = FakeNode()
    async with command_plane(tmp_path, node=node, max_attempts=1) as parts:
        sandbox = await asleep(parts, State.SUSPENDED)
        node.failures = [CapacityUnavailable("full")]
        results = await asyncio.gather(*(create_one(parts, sandbox) for _ in range(5)), return_exceptions=True)
        assert [type(result) for result in results] == [CapacityUnavailable] * 5
        assert (await parts.plane.sandboxes.get(parts.who, sandbox.id)).state is State.SUSPENDED
        await create_one(parts, sandbox)
        assert wakes(parts) == [("failed",), ("succeeded",)]


async def test_a_caller_who_leaves_does_not_end_the_wake_for_the_others(tmp_path: Path) -> None:
    node = FakeNode()
    async with command_plane(tmp_path, node=node) as parts:
        sandbox = await asleep(parts, State.SUSPENDED)
        gate = node.hold("ensure")
        first = asyncio.create_task(create_one(parts, sandbox))
        await gate.entered.wait()
        second = asyncio.create_task(create_one(parts, sandbox))
        await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.open()
        await second
        assert wakes(parts) == [("succeeded",)]


async def test_a_sandbox_that_is_being_deleted_is_not_woken(tmp_path: Path) -> None:
    node = FakeNode()
    async with command_plane(tmp_path, node=node) as parts:
        sandbox = await asleep(parts, State.SUSPENDED)
        gate = node.hold("remove")
        delete = await parts.plane.sandboxes.delete(parts.call("deleteSandbox"), sandbox.id)
        await gate.entered.wait()
        with pytest.raises(FailedPrecondition) as caught:
            await create_one(parts, sandbox)
        assert caught.value.details["current_state"] == "deleting"
        gate.open()
        await ended(parts, delete.id)


async def test_another_projects_sandbox_is_not_woken(tmp_path: Path) -> None:
    async with command_plane(tmp_path, node=FileNode()) as parts:
        sandbox = await asleep(parts, State.SUSPENDED)
        stranger = principal(OTHER_PROJECT)
        with pytest.raises(NotFound):
            await parts.commands.create(parts.call(who=stranger), sandbox.id, command())
        with pytest.raises(NotFound):
            await parts.files.list(stranger, sandbox.id, "/")
        assert wakes(parts) == []


# Processes that were there before


async def started(parts: CommandPlane, sandbox: Sandbox, spec: CommandSpec) -> tuple[ProcessId, SessionId]:
    process, _ = await parts.commands.create(parts.call(), sandbox.id, spec)
    return process.id, process.session_id


async def test_listing_attaching_and_killing_twice_work_after_a_suspend_and_a_wake(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        node, sandboxes = parts.plane.node, parts.plane.sandboxes
        sandbox = await running(parts, AutoLifecycle(on_idle=OnIdle.NONE))
        process_id, session_id = await started(parts, sandbox, command("sleep", "1000", start_now=True))
        node.write_output(session_id, b"before ")
        reader = parts.commands.read(session_id)
        records = [await anext(reader), await anext(reader)]
        await ended(parts, (await sandboxes.suspend(parts.call("s"), sandbox.id)).operation.id)
        await parts.plane.idle()
        await parts.commands.reconcile()  # as a server that starts now would
        (listed,) = (await parts.commands.list(parts.who, sandbox.id)).items
        assert (listed.id, listed.state) == (process_id, "running")
        with pytest.raises(InvalidTransition):
            await parts.commands.kill(parts.call("killProcess"), sandbox.id, process_id)

        await ended(parts, (await sandboxes.wake(parts.call("w"), sandbox.id)).operation.id)
        node.write_output(session_id, b"after")
        records.append(await anext(reader))
        assert [getattr(record, "stream_offset", None) for record in records] == [0, 0, 7], "a stream without a gap"
        (listed,) = (await parts.commands.list(parts.who, sandbox.id)).items
        assert listed.state == "running"
        await parts.commands.attach(session_id)
        for _ in range(2):
            await parts.commands.kill(parts.call("killProcess"), sandbox.id, process_id)
        records += [record async for record in reader]
        assert isinstance(records[-1], JournalRecord)
        assert records[-1].kind is RecordKind.PROCESS_EXITED
        await parts.commands.aclose()
        (listed,) = (await parts.commands.list(parts.who, sandbox.id)).items
        assert (listed.state, listed.signal) == ("exited", "SIGKILL")


@pytest.mark.parametrize("act", ["signal", "stdin", "close", "kill"])
async def test_what_is_sent_to_a_process_wakes_its_sandbox(tmp_path: Path, act: str) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await running(parts)
        process_id, session_id = await started(parts, sandbox, command("cat", stdin=True, start_now=True))
        await ended(parts, (await parts.plane.sandboxes.suspend(parts.call("s"), sandbox.id)).operation.id)
        call = parts.call(act)
        match act:
            case "signal":
                await parts.commands.signal(call, sandbox.id, process_id, "SIGUSR1")
            case "stdin":
                await parts.commands.write_stdin(call, sandbox.id, process_id, b"hello")
            case "close":
                await parts.commands.close_stdin(call, sandbox.id, process_id)
            case _:
                await parts.commands.kill(call, sandbox.id, process_id)
        session = parts.plane.node.sessions[session_id]
        seen = (session.signals, bytes(session.stdin), session.stdin_is_open)
        assert (
            seen
            == {
                "signal": (["SIGUSR1"], b"", True),
                "stdin": ([], b"hello", True),
                "close": ([], b"", False),
                "kill": (["SIGKILL"], b"", True),
            }[act]
        )
        assert wakes(parts) == [("succeeded",)]


async def test_reading_on_after_a_break_wakes_nobody_and_starting_a_command_does(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        node = parts.plane.node
        sandbox = await running(parts)
        _, waits = await started(parts, sandbox, command("true"))  # for its first reader
        _, writes = await started(parts, sandbox, command("true", start_now=True))
        node.write_output(writes, b"x")
        await ended(parts, (await parts.plane.sandboxes.suspend(parts.call("s"), sandbox.id)).operation.id)

        await parts.commands.attach(writes, goes_on=True)
        read = [record async for record in parts.commands.read(writes, follow=False)]
        assert len(read) == 2
        assert wakes(parts) == []

        await parts.commands.attach(waits)
        assert wakes(parts) == [("succeeded",)]
        assert waits in node.sessions


async def has_ended(parts: CommandPlane, sandbox: Sandbox, process_id: ProcessId) -> bool:
    return (await parts.commands.get(parts.who, sandbox.id, process_id)).state is ProcessState.EXITED


async def test_a_new_reader_of_a_running_command_wakes_its_sandbox(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        node = parts.plane.node
        sandbox = await running(parts)
        process_id, ended_one = await started(parts, sandbox, command("true", start_now=True))
        node.exit_process(ended_one)
        while not await has_ended(parts, sandbox, process_id):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        _, running_one = await started(parts, sandbox, command("true", start_now=True))
        await parts.plane.idle()
        await ended(parts, (await parts.plane.sandboxes.suspend(parts.call("s"), sandbox.id)).operation.id)

        await parts.commands.attach(ended_one)
        assert wakes(parts) == []
        await parts.commands.attach(running_one)
        assert wakes(parts) == [("succeeded",)]


async def test_a_server_that_starts_wakes_nobody_for_commands_that_it_owes(tmp_path: Path) -> None:
    node = FakeNode()
    async with command_plane(tmp_path, node=node) as parts:
        sandbox = await running(parts)
        await started(parts, sandbox, command("true", start_now=True))
        node.sessions.clear()  # the order never arrived
        await ended(parts, (await parts.plane.sandboxes.suspend(parts.call("s"), sandbox.id)).operation.id)
    async with command_plane(tmp_path, node=node) as parts:
        await parts.commands.reconcile()
        assert wakes(parts) == []
        assert (await parts.plane.sandboxes.get(parts.who, sandbox.id)).state is State.SUSPENDED

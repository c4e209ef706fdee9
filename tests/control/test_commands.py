"""Commands: recorded once, started once, ended when asked, and honest about what nobody saw."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest

from space.control.retention import Retention
from space.core.command import ProcessState, Pty
from space.core.errors import (
    FailedPrecondition,
    GuestUnreachable,
    InvalidRequest,
    InvalidTransition,
    LimitExceeded,
    NotFound,
    PayloadTooLarge,
    Unauthenticated,
)
from space.core.journal import JournalRecord, RecordKind
from space.core.node import MachineRef
from space.core.ports import ProcessOrder
from space.host.failpoint import FailpointError, arm
from space.testing.commands import CommandPlane, command, command_plane
from space.testing.control_plane import OTHER_PROJECT, principal
from space.testing.node import FakeNode

pytestmark = pytest.mark.anyio


async def kinds(parts: CommandPlane, session_id: str, **options: int | bool) -> list[RecordKind]:
    return [
        record.kind async for record in parts.commands.read(session_id, **options) if isinstance(record, JournalRecord)
    ]


async def until(condition: object, *, seconds: float = 5) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_command_waits_for_its_first_reader(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        process, secret = await parts.commands.create(parts.call(), sandbox.id, command("sleep", "1"))

        assert process.state is ProcessState.CREATED
        assert not process.is_start_requested
        assert parts.plane.node.sessions == {}
        token = await parts.commands.verify_session_token(secret.secret)
        assert token.session_id == process.session_id

        await parts.commands.attach(process.session_id)

        assert (await parts.commands.get(parts.who, sandbox.id, process.id)).state is ProcessState.RUNNING
        parts.plane.node.write_output(process.session_id, b"hello")
        parts.plane.node.exit_process(process.session_id, 3)
        assert await kinds(parts, process.session_id) == [
            RecordKind.PROCESS_STARTED,
            RecordKind.STDOUT,
            RecordKind.PROCESS_EXITED,
        ]


async def test_many_readers_at_once_start_it_once(tmp_path: Path) -> None:
    class SlowNode(FakeNode):
        calls = 0

        async def start_process(self, ref, order):  # type: ignore[no-untyped-def]
            self.calls += 1
            await asyncio.sleep(0.01)
            return await super().start_process(ref, order)

    node = SlowNode()
    async with command_plane(tmp_path, node=node) as parts:
        sandbox = await parts.plane.running()
        process, _ = await parts.commands.create(parts.call(), sandbox.id, command())

        await asyncio.gather(*(parts.commands.attach(process.session_id) for _ in range(20)))

        assert node.calls == 1
        assert len(node.sessions) == 1


@pytest.mark.parametrize("place", ["process.after_start_request", "process.after_start"])
async def test_a_crash_around_the_start_leaves_it_startable_and_started_once(tmp_path: Path, place: str) -> None:
    node = FakeNode()
    async with command_plane(tmp_path, node=node, is_observed=False) as parts:
        sandbox = await parts.plane.running()
        process, _ = await parts.commands.create(parts.call(), sandbox.id, command())
        arm(f"{place}:error")
        try:
            with pytest.raises(FailpointError):
                await parts.commands.attach(process.session_id)
        finally:
            arm("")
    async with command_plane(tmp_path, node=node) as parts:  # the node lives on; the control plane starts anew
        await parts.commands.reconcile()
        await parts.commands.attach(process.session_id)
        await parts.commands.attach(process.session_id)

        assert len(node.sessions) == 1
        assert (await parts.commands.get(parts.who, sandbox.id, process.id)).state is ProcessState.RUNNING


async def test_start_now_runs_without_any_reader(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        process, _ = await parts.commands.create(parts.call(), sandbox.id, command(start_now=True))

        assert process.state is ProcessState.RUNNING
        parts.plane.node.exit_process(process.session_id, 0)

        async def has_ended() -> bool:
            return (await parts.commands.get(parts.who, sandbox.id, process.id)).state is ProcessState.EXITED

        await until(has_ended)


async def test_start_now_survives_a_crash_between_record_and_start(tmp_path: Path) -> None:
    node = FakeNode()
    async with command_plane(tmp_path, node=node) as parts:
        sandbox = await parts.plane.running()
        arm("command.after_create:error")
        try:
            with pytest.raises(FailpointError):
                await parts.commands.create(parts.call(), sandbox.id, command(start_now=True))
        finally:
            arm("")
        assert node.sessions == {}
    async with command_plane(tmp_path, node=node) as parts:
        await parts.commands.reconcile()

        (process,) = (await parts.commands.list(parts.who, sandbox.id)).items
        assert process.state is ProcessState.RUNNING
        assert len(node.sessions) == 1


async def test_a_command_that_the_guest_did_not_start_never_starts_later(tmp_path: Path) -> None:
    class DeafNode(FakeNode):
        async def start_process(self, ref, order):  # type: ignore[no-untyped-def]
            raise GuestUnreachable("the agent does not answer")

    async with command_plane(tmp_path, node=DeafNode()) as parts:
        sandbox = await parts.plane.running()
        with pytest.raises(GuestUnreachable):
            await parts.commands.create(parts.call(), sandbox.id, command(start_now=True))

        (process,) = (await parts.commands.list(parts.who, sandbox.id)).items
        assert (process.state, process.reason) == (ProcessState.EXITED, "not_started")


async def test_a_caller_that_leaves_before_the_commit_leaves_nothing_to_start(tmp_path: Path) -> None:
    node = FakeNode()
    async with command_plane(tmp_path, node=node) as parts:
        sandbox = await parts.plane.running()
        for making in (
            parts.commands.create(parts.call(), sandbox.id, command(start_now=True)),
            parts.commands.exec(parts.call(), sandbox.id, command()),
        ):
            task = asyncio.create_task(making)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await parts.commands.aclose()
        await parts.commands.reconcile()
        assert node.sessions == {}
        items = (await parts.commands.list(parts.who, sandbox.id)).items
        assert {(item.state, item.reason) for item in items} <= {(ProcessState.EXITED, "not_started")}


async def test_a_sandbox_that_does_not_run_takes_no_commands(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        parts.plane.node.crash(sandbox.id)

        async def has_failed() -> bool:
            return (await parts.plane.get(sandbox.id)).state == "failed"

        await until(has_failed)
        with pytest.raises(InvalidTransition) as refused:
            await parts.commands.create(parts.call(), sandbox.id, command())
        assert refused.value.details["current_state"] == "failed"

        await parts.plane.ended(await parts.plane.delete(sandbox.id))
        with pytest.raises(FailedPrecondition):
            await parts.commands.create(parts.call(), sandbox.id, command())


async def test_another_project_cannot_tell_a_sandbox_from_nothing(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        process, _ = await parts.commands.create(parts.call(), sandbox.id, command())
        stranger = principal(OTHER_PROJECT)
        call = parts.call(who=stranger)
        for attempt in (
            parts.commands.create(call, sandbox.id, command()),
            parts.commands.exec(call, sandbox.id, command()),
            parts.commands.list(stranger, sandbox.id),
            parts.commands.get(stranger, sandbox.id, process.id),
            parts.commands.kill(call, sandbox.id, process.id),
            parts.commands.signal(call, sandbox.id, process.id, "SIGTERM"),
            parts.commands.write_stdin(call, sandbox.id, process.id, b"x"),
            parts.commands.renew_token(call, sandbox.id, process.session_id),
            parts.commands.result(stranger, sandbox.id, process.id),
        ):
            with pytest.raises(NotFound):
                await attempt
        assert (await parts.commands.get(parts.who, sandbox.id, process.id)).state is ProcessState.CREATED


async def test_a_process_of_one_sandbox_is_not_found_in_another(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        one, two = await parts.plane.running(), await parts.plane.running()
        process, _ = await parts.commands.create(parts.call(), one.id, command())
        with pytest.raises(NotFound):
            await parts.commands.kill(parts.call(), two.id, process.id)
        with pytest.raises(NotFound):
            await parts.commands.renew_token(parts.call(), two.id, process.session_id)


async def test_killing_before_the_start_ends_it_without_starting(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        process, _ = await parts.commands.create(parts.call(), sandbox.id, command())

        killed = await parts.commands.kill(parts.call("killProcess"), sandbox.id, process.id)

        assert (killed.state, killed.reason, killed.exit_code) == (ProcessState.EXITED, "killed", None)
        await parts.commands.attach(process.session_id)
        assert parts.plane.node.sessions == {}
        (record,) = [record async for record in parts.commands.read(process.session_id)]
        assert isinstance(record, JournalRecord)
        assert record.kind is RecordKind.PROCESS_EXITED
        assert json.loads(record.payload)["reason"] == "killed"
        assert await kinds(parts, process.session_id, start=record.position) == []
        with pytest.raises(InvalidRequest):
            await kinds(parts, process.session_id, start=77)
        assert [entry.target for entry in await parts.audited(action="killProcess")] == [process.id]


async def test_a_kill_and_a_first_reader_at_once_agree(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        for kill_first in (True, False) * 5:
            process, _ = await parts.commands.create(parts.call(), sandbox.id, command())
            kill = parts.commands.kill(parts.call(), sandbox.id, process.id)
            attach = parts.commands.attach(process.session_id)
            await asyncio.gather(*((kill, attach) if kill_first else (attach, kill)))

            async def has_ended(process_id: str = process.id) -> bool:
                return (await parts.commands.get(parts.who, sandbox.id, process_id)).state is ProcessState.EXITED

            await until(has_ended)
            session = parts.plane.node.sessions.get(process.session_id)
            assert session is None or session.signals == ["SIGKILL"]


async def test_killing_what_has_ended_succeeds_and_changes_nothing(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        process, _ = await parts.commands.create(parts.call(), sandbox.id, command(start_now=True))
        parts.plane.node.exit_process(process.session_id, 5)

        async def has_ended() -> bool:
            return (await parts.commands.get(parts.who, sandbox.id, process.id)).state is ProcessState.EXITED

        await until(has_ended)
        after = await parts.commands.kill(parts.call("killProcess"), sandbox.id, process.id)
        signalled = await parts.commands.signal(parts.call(), sandbox.id, process.id, "SIGTERM")

        assert after.exit_code == signalled.exit_code == 5
        assert parts.plane.node.sessions[process.session_id].signals == []
        assert await parts.audited(action="killProcess") == []


async def test_a_kill_of_a_process_in_a_deleted_sandbox_succeeds(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        process, _ = await parts.commands.create(parts.call(), sandbox.id, command(start_now=True))
        await parts.plane.ended(await parts.plane.delete(sandbox.id))

        assert (await parts.commands.kill(parts.call(), sandbox.id, process.id)).state is ProcessState.LOST


async def test_signals_reach_the_process_and_are_audited_before(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        process, _ = await parts.commands.create(parts.call(), sandbox.id, command())
        with pytest.raises(FailedPrecondition, match="attach"):
            await parts.commands.signal(parts.call(), sandbox.id, process.id, "SIGUSR1")
        await parts.commands.attach(process.session_id)

        await parts.commands.signal(parts.call("signalProcess"), sandbox.id, process.id, "SIGUSR1")

        assert parts.plane.node.sessions[process.session_id].signals == ["SIGUSR1"]
        (entry,) = await parts.audited(action="signalProcess")
        assert entry.details == {"sandbox_id": sandbox.id, "signal": "SIGUSR1"}
        for name in ("SIGNOPE", "9", "", "SIG_DFL", "sigterm"):
            with pytest.raises(InvalidRequest):
                await parts.commands.signal(parts.call(), sandbox.id, process.id, name)


async def test_input_goes_to_those_who_have_some(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        plain, _ = await parts.commands.create(parts.call(), sandbox.id, command(start_now=True))
        piped, _ = await parts.commands.create(parts.call(), sandbox.id, command(start_now=True, stdin=True))
        terminal, _ = await parts.commands.create(
            parts.call(), sandbox.id, command(start_now=True, pty=Pty(cols=80, rows=24))
        )
        with pytest.raises(FailedPrecondition, match="no input"):
            await parts.commands.write_stdin(parts.call(), sandbox.id, plain.id, b"x")
        with pytest.raises(FailedPrecondition, match="no terminal"):
            await parts.commands.resize(parts.call(), sandbox.id, piped.id, Pty(cols=1, rows=1))
        with pytest.raises(PayloadTooLarge):
            await parts.commands.write_stdin(parts.call(), sandbox.id, piped.id, bytes((4 << 20) + 1))

        call = parts.call("writeStdin")
        for part in (b"one", b"two"):
            await parts.commands.write_stdin(call, sandbox.id, piped.id, part)
        await parts.commands.close_stdin(call, sandbox.id, piped.id)
        await parts.commands.resize(parts.call(), sandbox.id, terminal.id, Pty(cols=100, rows=30))

        assert parts.plane.node.sessions[piped.session_id].stdin == b"onetwo"
        assert not parts.plane.node.sessions[piped.session_id].stdin_is_open
        assert len(await parts.audited(action="writeStdin")) == 1
        with pytest.raises(InvalidRequest):
            await parts.commands.resize(parts.call(), sandbox.id, terminal.id, Pty(cols=0, rows=1))


async def test_a_lost_machine_takes_its_unfinished_processes_and_keeps_what_ended(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        waiting, _ = await parts.commands.create(parts.call(), sandbox.id, command())
        running, _ = await parts.commands.create(parts.call(), sandbox.id, command(start_now=True))
        ended, _ = await parts.commands.create(parts.call(), sandbox.id, command(start_now=True))
        parts.plane.node.write_output(running.session_id, b"so far")
        parts.plane.node.exit_process(ended.session_id, 0)
        parts.plane.node.crash(sandbox.id, reason="oom")

        async def all_ended() -> bool:
            items = (await parts.commands.list(parts.who, sandbox.id)).items
            return all(item.state in (ProcessState.LOST, ProcessState.EXITED) for item in items)

        await until(all_ended)
        states = {item.id: item for item in (await parts.commands.list(parts.who, sandbox.id)).items}
        assert states[waiting.id].state is states[running.id].state is ProcessState.LOST
        assert states[running.id].reason == "oom"
        assert (states[ended.id].state, states[ended.id].exit_code) == (ProcessState.EXITED, 0)
        assert await kinds(parts, waiting.session_id) == [RecordKind.SANDBOX_LOST]
        assert await kinds(parts, running.session_id) == [
            RecordKind.PROCESS_STARTED,
            RecordKind.STDOUT,
            RecordKind.SANDBOX_LOST,
        ]
        assert await kinds(parts, ended.session_id) == [RecordKind.PROCESS_STARTED, RecordKind.PROCESS_EXITED]


async def test_a_journal_without_an_end_gets_an_honest_one_when_the_machine_is_gone(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_observed=False) as parts:
        sandbox = await parts.plane.running()
        process, _ = await parts.commands.create(parts.call(), sandbox.id, command(start_now=True))
        parts.plane.node.write_output(process.session_id, b"x")
        await parts.commands.lose_all(MachineRef(sandbox.id, 1), "node_lost")

        found = await kinds(parts, process.session_id)
        assert found == [RecordKind.PROCESS_STARTED, RecordKind.STDOUT, RecordKind.SANDBOX_LOST]


async def test_an_exit_that_was_seen_replaces_a_presumed_loss_and_nothing_replaces_it(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_observed=False) as parts:
        sandbox = await parts.plane.running()
        process, _ = await parts.commands.create(parts.call(), sandbox.id, command(start_now=True))
        running = parts.plane.node.sessions[process.session_id].status
        parts.plane.node.exit_process(process.session_id, 4)
        exited = parts.plane.node.sessions[process.session_id].status
        await parts.commands.lose_all(MachineRef(sandbox.id, 1), "node_lost")

        for status in (exited, running, exited):
            await parts.commands.apply_status(status)
        await parts.commands.lose_all(MachineRef(sandbox.id, 1), "node_lost")

        row = await parts.plane.store.processes.find(process.id)
        assert row is not None
        assert (row.state, row.exit_code, row.reason) == (ProcessState.EXITED, 4, None)


async def test_a_restart_learns_what_happened_meanwhile(tmp_path: Path) -> None:
    node = FakeNode()
    async with command_plane(tmp_path, node=node, is_observed=False) as parts:
        sandbox = await parts.plane.running()
        process, _ = await parts.commands.create(parts.call(), sandbox.id, command(start_now=True))
    node.exit_process(process.session_id, 9)
    async with command_plane(tmp_path, node=node, is_observed=False) as parts:
        await parts.commands.reconcile()
        row = await parts.plane.store.processes.find(process.id)
        assert row is not None
        assert (row.state, row.exit_code) == (ProcessState.EXITED, 9)


async def test_sessions_stay_readable_after_the_sandbox_is_deleted(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        process, _ = await parts.commands.create(parts.call(), sandbox.id, command(start_now=True))
        parts.plane.node.write_output(process.session_id, b"kept")
        parts.plane.node.exit_process(process.session_id, 0)
        await parts.plane.ended(await parts.plane.delete(sandbox.id))

        assert RecordKind.STDOUT in await kinds(parts, process.session_id)
        secret = await parts.commands.renew_token(parts.call(), sandbox.id, process.session_id)
        assert (await parts.commands.verify_session_token(secret.secret)).session_id == process.session_id


async def test_a_sandbox_has_room_for_so_many_unfinished_processes(
    tmp_path: Path,
) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        made = await asyncio.gather(*(parts.commands.create(parts.call(), sandbox.id, command()) for _ in range(1000)))
        with pytest.raises(LimitExceeded) as refused:
            await parts.commands.create(parts.call(), sandbox.id, command())
        assert refused.value.details["quota"] == "processes"
        await parts.commands.kill(parts.call(), sandbox.id, made[0][0].id)
        await parts.commands.create(parts.call(), sandbox.id, command())


async def test_processes_are_listed_in_pages_in_the_order_they_were_made(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        made = []
        for _ in range(5):
            process, _ = await parts.commands.create(parts.call(), sandbox.id, command())
            made.append(process.id)
            await asyncio.sleep(0.002)
        seen, cursor = [], None
        while True:
            page = await parts.commands.list(parts.who, sandbox.id, limit=2, cursor=cursor)
            seen += [process.id for process in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == made
        with pytest.raises(InvalidRequest):
            await parts.commands.list(parts.who, sandbox.id, cursor="x' OR 1=1 --")


async def test_what_ended_a_day_ago_is_forgotten_with_its_journal(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_observed=False) as parts:
        sandbox = await parts.plane.running()
        process, secret = await parts.commands.create(parts.call(), sandbox.id, command(start_now=True))
        parts.plane.node.exit_process(process.session_id, 0)
        await parts.commands.reconcile()
        store, node, clock = parts.plane.store, parts.plane.node, parts.plane.clock
        assert await Retention(store, node, clock, keep=timedelta(hours=24)).forget() == 0

        assert await Retention(store, node, clock, keep=timedelta(seconds=-1)).forget() == 1

        assert parts.plane.node.sessions == {}
        with pytest.raises(NotFound):
            await parts.commands.get(parts.who, sandbox.id, process.id)
        with pytest.raises(NotFound):
            await kinds(parts, process.session_id)
        with pytest.raises(Unauthenticated):
            await parts.commands.verify_session_token(secret.secret)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"argv": ()}, "argv"),
        ({"argv": ("",)}, "argv"),
        ({"argv": ("a\0b",)}, "argv"),
        ({"argv": ("a", "\ud800")}, "argv"),
        ({"argv": ("a",) * 4097}, "argv"),
        ({"argv": ("a" * 262_145,)}, "argv"),
        ({"env": {"A=B": "x"}}, "env"),
        ({"env": {"": "x"}}, "env"),
        ({"env": {"A": "x\0"}}, "env"),
        ({"env": {str(number): "" for number in range(257)}}, "env"),
        ({"cwd": "relative"}, "cwd"),
        ({"cwd": "/a\0"}, "cwd"),
        ({"user": ""}, "user"),
        ({"user": "u" * 65}, "user"),
        ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds"),
        ({"timeout_seconds": 1e12}, "timeout_seconds"),
        ({"pty": Pty(cols=0, rows=24)}, "cols"),
        ({"pty": Pty(cols=80, rows=100_000)}, "rows"),
    ],
)
async def test_a_command_that_no_guest_can_run_is_refused_by_field(
    tmp_path: Path, changes: dict[str, object], field: str
) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        with pytest.raises((InvalidRequest, PayloadTooLarge)) as refused:
            await parts.commands.create(parts.call(), "sbx" + "0" * 26, command(**{"argv": ("true",), **changes}))
        assert refused.value.details["field"] == field


async def test_a_start_that_never_reached_the_node_is_forgotten_after_a_day(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_observed=False) as parts:
        sandbox = await parts.plane.running()
        lost, _ = await parts.commands.create(parts.call(), sandbox.id, command())
        known, _ = await parts.commands.create(parts.call(), sandbox.id, command())
        store, node, clock = parts.plane.store, parts.plane.node, parts.plane.clock
        await store.processes.request_start(lost.session_id, at=clock.now())  # and the server was killed
        _, generation = await store.processes.request_start(known.session_id, at=clock.now())
        assert generation is not None
        order = ProcessOrder(process_id=known.id, session_id=known.session_id, spec=known.spec)
        await node.start_process(MachineRef(sandbox.id, generation), order)  # killed before it was told
        assert await Retention(store, node, clock, keep=timedelta(hours=24)).forget() == 0

        assert await Retention(store, node, clock, keep=timedelta(seconds=-1)).forget() == 1

        assert [process.id for process in (await parts.commands.list(parts.who, sandbox.id)).items] == [known.id]

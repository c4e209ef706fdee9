import json
import os
import signal
from dataclasses import replace

import anyio
import pytest
from tests.node.harness import World, command, eventually, observed, order, output, read, shell

from space.core.command import Pty
from space.core.errors import Conflict, FailedPrecondition, GuestUnreachable, InvalidRequest, LimitExceeded, NotFound
from space.core.journal import JournalRecord, RecordKind
from space.core.ports import SessionStatus

pytestmark = [pytest.mark.anyio, pytest.mark.live]


def exit_of(records: list[JournalRecord]) -> dict[str, object]:
    assert records[-1].kind is RecordKind.PROCESS_EXITED
    found = json.loads(records[-1].payload)
    return {name: found[name] for name in ("exit_code", "signal", "reason")}


async def test_a_program_that_does_not_exist_ends_as_in_a_shell(world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        for argv, code in ((("/no/such/program",), 127), (("/etc/passwd",), 126)):
            process = command(*argv)
            status = await node.start_process(machine.ref, process)
            assert status.exit_code == code
            records = await read(node, process.session_id)
            assert [record.kind for record in records] == [RecordKind.PROCESS_EXITED]
            ended = exit_of(records)
            assert ended["exit_code"] == code
            assert str(ended["reason"]).startswith("spawn_failed: ")


async def test_text_that_no_program_can_take_ends_the_same_way(world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        process = command("/bin/echo", "a\0b")
        await node.start_process(machine.ref, process)
        assert exit_of(await read(node, process.session_id))["exit_code"] == 126


async def test_starting_twice_starts_once(world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        process = shell("echo $$")
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(node.start_process, machine.ref, process)
        records = await read(node, process.session_id)
        assert len(output(records).split()) == 1
        status = await node.start_process(machine.ref, process)
        assert status.exit_code == 0
        with pytest.raises(Conflict, match="belongs to process"):
            await node.start_process(machine.ref, replace(process, process_id=shell("").process_id))


async def test_the_environment_is_template_then_sandbox_then_command(world: World) -> None:
    async with world.running() as node:
        machine = replace(order(), env={"A": "sandbox", "B": "sandbox"})
        await node.ensure(machine)
        process = shell("echo $FROM_TEMPLATE $A $B")
        process = replace(process, spec=replace(process.spec, env={"B": "command"}))
        await node.start_process(machine.ref, process)
        assert output(await read(node, process.session_id)) == b"1 sandbox command\n"


async def test_stdin_signals_and_terminals_reach_the_process(world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        cat = shell("cat", stdin=True)
        await node.start_process(machine.ref, cat)
        await node.write_stdin(machine.ref, cat.process_id, b"hello")
        await node.close_stdin(machine.ref, cat.process_id)
        assert output(await read(node, cat.session_id)) == b"hello"
        with pytest.raises(FailedPrecondition):
            await node.write_stdin(machine.ref, cat.process_id, b"late")
        await node.signal_process(machine.ref, cat.process_id, "SIGKILL")  # has ended: succeeds

        sleeper = shell("sleep 600")
        await node.start_process(machine.ref, sleeper)
        await node.signal_process(machine.ref, sleeper.process_id, "SIGTERM")
        assert exit_of(await read(node, sleeper.session_id))["signal"] == "SIGTERM"

        terminal = command("/bin/sh", "-c", "read x; stty size", pty=Pty(cols=80, rows=24), stdin=True)
        await node.start_process(machine.ref, terminal)
        await node.resize(machine.ref, terminal.process_id, Pty(cols=100, rows=50))
        await node.write_stdin(machine.ref, terminal.process_id, b"\n")
        records = await read(node, terminal.session_id)
        assert b"50 100" in output(records, RecordKind.PTY)


async def test_starts_and_ends_are_observed(world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        process = shell("exit 3", stdin=False)
        await node.start_process(machine.ref, process)
        await read(node, process.session_id)
        (found,) = await observed(node, 1)
        assert isinstance(found, SessionStatus)
        assert (found.process_id, found.exit_code) == (process.process_id, 3)


async def test_a_process_of_another_machine_is_not_taken_over(world: World) -> None:
    async with world.running() as node:
        one, two = order(), order()
        await node.ensure(one)
        await node.ensure(two)
        process = shell("sleep 600")
        await node.start_process(one.ref, process)
        with pytest.raises(FailedPrecondition, match="another machine"):
            await node.start_process(two.ref, process)


async def test_a_broken_channel_is_dialled_anew_and_nothing_is_lost_or_repeated(world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        process = shell("for i in $(seq 1 200); do echo line $i; sleep 0.01; done")
        await node.start_process(machine.ref, process)
        live = node._machines.get(machine.ref)
        for _ in range(8):
            await anyio.sleep(0.15)
            guest = await live.guest()
            await guest._stream.aclose()
        records = await read(node, process.session_id)
        assert output(records) == b"".join(b"line %d\n" % number for number in range(1, 201))
        assert exit_of(records)["exit_code"] == 0


async def test_calls_fail_in_time_while_the_agent_is_silent_and_work_again_after(world: World) -> None:
    async with world.running(guest_deadline=0.3, guest_silence=0.5) as node:
        machine = order()
        await node.ensure(machine)
        agent = world.agents.processes[machine.ref.machine_id]
        os.kill(agent.pid, signal.SIGSTOP)
        process = shell("echo done")
        with pytest.raises(GuestUnreachable), anyio.fail_after(30):
            await node.start_process(machine.ref, process)
        await anyio.sleep(1)
        os.kill(agent.pid, signal.SIGCONT)
        await anyio.sleep(0.5)
        await node.start_process(machine.ref, process)
        assert output(await read(node, process.session_id)) == b"done\n"


async def test_unknown_sessions_and_wrong_ids_are_refused(world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        process = shell("echo hello")
        await node.start_process(machine.ref, process)
        await read(node, process.session_id)
        with pytest.raises(NotFound):
            await read(node, shell("").session_id)
        with pytest.raises(NotFound):
            await read(node, "../../etc/passwd")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            await read(node, process.session_id, start=5)
        assert await node.session_status(shell("").session_id) is None
        await node.forget_session(process.session_id)
        await node.forget_session(process.session_id)
        with pytest.raises(NotFound):
            await read(node, process.session_id)


async def test_an_ended_journal_is_read_after_a_restart_and_goes_when_its_time_is_over(world: World) -> None:
    machine, process = order(), shell("echo hello")
    async with world.running() as node:
        await node.ensure(machine)
        await node.start_process(machine.ref, process)
        await read(node, process.session_id)
        await node.remove(machine.ref)
    async with world.running() as node:
        assert output(await read(node, process.session_id)) == b"hello\n"
    async with world.running(journal_keep_hours=0, sweep_seconds=0.05) as node:
        journal = world.data_dir / "journals" / process.session_id
        await eventually(lambda: not journal.exists())
        assert await node.session_status(process.session_id) is None


async def test_more_commands_than_allowed_are_refused_until_one_ends(world: World) -> None:
    async with world.running(max_processes=2) as node:
        machine = order()
        await node.ensure(machine)
        running = [shell("sleep 600") for _ in range(2)]
        for process in running:
            await node.start_process(machine.ref, process)
        with pytest.raises(LimitExceeded, match="2 commands"):
            await node.start_process(machine.ref, shell("true"))
        await node.start_process(machine.ref, running[0])
        await node.signal_process(machine.ref, running[0].process_id, "SIGKILL")
        await read(node, running[0].session_id)
        await node.start_process(machine.ref, shell("true"))


async def test_many_commands_at_once_keep_their_output_apart(world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        results: dict[int, bytes] = {}

        async def run(number: int) -> None:
            process = shell(f"for i in 1 2 3 4 5; do echo {number}; done")
            await node.start_process(machine.ref, process)
            results[number] = output(await read(node, process.session_id))

        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(run, number)
        assert results == {number: b"%d\n" % number * 5 for number in range(30)}

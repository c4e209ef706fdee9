"""`exec`: one answer with a command's end, and no command left when nobody waits for it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from space.core.command import ProcessState
from space.core.errors import GuestUnreachable, InvalidRequest, Unavailable
from space.core.journal import RecordKind
from space.testing.commands import CommandPlane, command, command_plane
from space.testing.node import FakeNode

pytestmark = pytest.mark.anyio


class EagerNode(FakeNode):
    """Runs `script` as soon as a process has started."""

    script: Callable[["EagerNode", str], None] = lambda node, session_id: node.exit_process(session_id, 0)

    async def start_process(self, ref, order):  # type: ignore[no-untyped-def]
        status = await super().start_process(ref, order)
        type(self).script(self, order.session_id)
        return status


def node_that(script: Callable[[FakeNode, str], None]) -> FakeNode:
    return type("Scripted", (EagerNode,), {"script": staticmethod(script)})()


async def started(parts: CommandPlane) -> str:
    async with asyncio.timeout(5):
        while not parts.plane.node.sessions:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return next(iter(parts.plane.node.sessions))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(5):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_it_answers_with_both_streams_and_the_exit(tmp_path: Path) -> None:
    def script(node: FakeNode, session_id: str) -> None:
        node.write_output(session_id, b"out\xff")
        node.write_output(session_id, b"err", kind=RecordKind.STDERR)
        node.exit_process(session_id, 7)

    async with command_plane(tmp_path, node=node_that(script)) as parts:
        sandbox = await parts.plane.running()
        result = await parts.commands.exec(parts.call("exec"), sandbox.id, command())

        assert (result.exit_code, result.signal, result.reason) == (7, None, None)
        assert (result.stdout, result.stderr) == (b"out\xff", b"err")
        assert (result.stdout_truncated, result.stderr_truncated) == (False, False)
        assert (result.stdout_bytes, result.stderr_bytes) == (4, 3)
        assert result.duration_ms >= 0
        # The process list never says less than the answer did.
        process = await parts.commands.get(parts.who, sandbox.id, result.process_id)
        assert (process.state, process.exit_code, process.stdout_bytes) == (ProcessState.EXITED, 7, 4)
        (entry,) = await parts.audited(action="exec")
        assert (entry.target, entry.outcome) == (result.process_id, "ok")


async def test_the_list_agrees_with_the_answer_even_before_anything_is_written(tmp_path: Path) -> None:
    async with command_plane(
        tmp_path, node=node_that(lambda node, session: node.exit_process(session, 3)), is_observed=False
    ) as parts:
        sandbox = await parts.plane.running()
        result = await parts.commands.exec(parts.call(), sandbox.id, command())

        (process,) = (await parts.commands.list(parts.who, sandbox.id)).items
        assert (process.state, process.exit_code) == (ProcessState.EXITED, 3)

        async def is_written() -> bool:  # although no observation ever comes
            row = await parts.plane.store.processes.find(result.process_id)
            return row is not None and row.state is ProcessState.EXITED

        await until(is_written)


async def test_long_output_is_answered_by_head_and_tail_and_the_session_has_the_rest(tmp_path: Path) -> None:
    def script(node: FakeNode, session_id: str) -> None:
        for number in range(1000):
            node.write_output(session_id, b"%04d\n" % number)
        node.exit_process(session_id, 0)

    async with command_plane(tmp_path, node=node_that(script)) as parts:
        sandbox = await parts.plane.running()
        result = await parts.commands.exec(parts.call(), sandbox.id, command(), max_output_bytes=20)

        assert result.stdout_truncated
        assert result.stdout_bytes == 5000
        assert (
            result.stdout
            == (
                f"0000\n0001\n\n[4980 bytes left out from offset 10; session {result.session_id} has them all]\n"
                "0998\n0999\n"
            ).encode()
        )
        whole = b"".join(
            [
                record.payload
                async for record in parts.commands.read(result.session_id)
                if not hasattr(record, "oldest_position") and record.kind is RecordKind.STDOUT
            ]
        )
        assert len(whole) == 5000


async def test_a_lost_machine_is_a_result_without_an_invented_exit(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        running = asyncio.create_task(parts.commands.exec(parts.call(), sandbox.id, command("sleep", "600")))
        session_id = await started(parts)
        parts.plane.node.write_output(session_id, b"so far")
        parts.plane.node.crash(sandbox.id, reason="oom")

        result = await running

        assert (result.exit_code, result.signal, result.reason) == (None, None, "sandbox_lost: oom")
        assert result.stdout == b"so far"
        assert (await parts.commands.get(parts.who, sandbox.id, result.process_id)).state is ProcessState.LOST


async def test_a_caller_that_leaves_takes_its_command_along(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        running = asyncio.create_task(parts.commands.exec(parts.call(), sandbox.id, command("sleep", "600")))
        session_id = await started(parts)

        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await parts.commands.aclose()

        assert parts.plane.node.sessions[session_id].signals == ["SIGKILL"]


@pytest.mark.parametrize("is_waking", [False, True])
async def test_a_caller_that_leaves_takes_its_command_along_also_from_a_later_machine(
    tmp_path: Path, is_waking: bool
) -> None:
    async with command_plane(tmp_path) as parts:
        plane = parts.plane
        sandbox = await plane.running()
        running = asyncio.create_task(parts.commands.exec(parts.call(), sandbox.id, command("sleep", "600")))
        session_id = await started(parts)
        await plane.done(plane.sandboxes.suspend(parts.call(), sandbox.id))
        gate = plane.node.hold("ensure") if is_waking else None
        waking = asyncio.create_task(plane.done(plane.sandboxes.wake(parts.call(), sandbox.id)))
        if gate is None:
            await waking
        else:
            await gate.entered.wait()

        running.cancel()
        await asyncio.sleep(0.1)
        if gate is not None:
            gate.open()
        with pytest.raises(asyncio.CancelledError):
            await running
        await waking
        await parts.commands.aclose()

        assert plane.node.sessions[session_id].signals == ["SIGKILL"]


async def test_a_caller_that_leaves_while_it_starts_leaves_nothing_running(tmp_path: Path) -> None:
    class HeldNode(FakeNode):
        async def start_process(self, ref, order):  # type: ignore[no-untyped-def]
            if order.session_id in self.sessions:
                return await super().start_process(ref, order)
            await super().start_process(ref, order)
            await asyncio.sleep(600)

    async with command_plane(tmp_path, node=HeldNode()) as parts:
        sandbox = await parts.plane.running()
        running = asyncio.create_task(parts.commands.exec(parts.call(), sandbox.id, command()))
        session_id = await started(parts)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await parts.commands.aclose()
        assert parts.plane.node.sessions[session_id].signals == ["SIGKILL"]


async def test_a_command_that_could_not_be_started_is_an_error_and_over(tmp_path: Path) -> None:
    class DeafNode(FakeNode):
        async def start_process(self, ref, order):  # type: ignore[no-untyped-def]
            raise GuestUnreachable("the agent does not answer")

    async with command_plane(tmp_path, node=DeafNode()) as parts:
        sandbox = await parts.plane.running()
        with pytest.raises(GuestUnreachable):
            await parts.commands.exec(parts.call(), sandbox.id, command())
        (process,) = (await parts.commands.list(parts.who, sandbox.id)).items
        assert (process.state, process.reason) == (ProcessState.EXITED, "not_started")


async def test_a_stream_that_ends_early_is_an_error_and_never_an_exit(tmp_path: Path) -> None:
    class ForgetfulNode(FakeNode):
        async def read_session(self, session_id, *, start=0, follow=True):  # type: ignore[no-untyped-def]
            async for record in super().read_session(session_id, start=start, follow=False):
                yield record

    async with command_plane(tmp_path, node=ForgetfulNode()) as parts:
        sandbox = await parts.plane.running()
        with pytest.raises(Unavailable) as refused:
            await parts.commands.exec(parts.call(), sandbox.id, command())
        process = await parts.commands.get(parts.who, sandbox.id, refused.value.details["process_id"])
        assert process.state is ProcessState.RUNNING


async def test_a_repeated_exec_joins_the_process_that_its_key_led_to(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        first = asyncio.create_task(parts.commands.exec(parts.call(), sandbox.id, command()))
        session_id = await started(parts)
        process_id = parts.plane.node.sessions[session_id].order.process_id
        again = asyncio.create_task(parts.commands.result(parts.who, sandbox.id, process_id))
        await asyncio.sleep(0.02)
        parts.plane.node.write_output(session_id, b"once")
        parts.plane.node.exit_process(session_id, 1)

        one, two = await first, await again

        assert (one.exit_code, one.stdout, one.session_id) == (two.exit_code, two.stdout, two.session_id)
        assert len(parts.plane.node.sessions) == 1


async def test_the_limit_of_an_answer_is_checked_before_anything_runs(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        with pytest.raises(InvalidRequest):
            await parts.commands.exec(parts.call(), sandbox.id, command(), max_output_bytes=1 << 30)
        assert (await parts.commands.list(parts.who, sandbox.id)).items == []


async def test_the_hot_path_commits_once(tmp_path: Path) -> None:
    async with command_plane(
        tmp_path, node=node_that(lambda node, session: node.exit_process(session, 0)), is_observed=False
    ) as parts:
        sandbox = await parts.plane.running()
        writer = parts.plane.store._writer
        jobs = 0
        run = writer.run

        async def counting(function):  # type: ignore[no-untyped-def]
            nonlocal jobs
            jobs += 1
            return await run(function)

        writer.run = counting  # type: ignore[method-assign]
        try:
            await parts.commands.exec(parts.call(), sandbox.id, command())
        finally:
            writer.run = run  # type: ignore[method-assign]
        assert jobs == 1


async def test_a_sandbox_is_in_use_for_as_long_as_a_call_waits_for_its_command(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        running = asyncio.create_task(parts.commands.exec(parts.call("exec"), sandbox.id, command("sleep", "1000")))
        session_id = await started(parts)
        await parts.activity.flush()
        assert parts.activity.newest(sandbox.id) is not None
        parts.plane.node.exit_process(session_id, 0)  # type: ignore[arg-type]
        await running
        await parts.activity.flush()
        assert parts.activity.newest(sandbox.id) is None

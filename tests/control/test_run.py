"""One call from nothing to output: and nothing is left, whichever way it ends."""

import asyncio
from pathlib import Path

import pytest

from space.control.run import FileIn, RunRequest
from space.core.errors import GuestUnreachable, InvalidRequest, NotFound, PayloadTooLarge, RuntimeFailed, SpaceError
from space.core.sandbox import AutoLifecycle, SandboxSpec
from space.core.store import SandboxFilter
from space.testing.commands import CommandPlane, command, command_plane
from space.testing.node_files import FileNode

pytestmark = pytest.mark.anyio


class RunNode(FileNode):
    """Copies /in to /out, prints, and exits, unless it is told to hang."""

    hangs = False

    async def start_process(self, ref, order):  # type: ignore[no-untyped-def]
        status = await super().start_process(ref, order)
        if not self.hangs:
            tree = self.files.setdefault(ref.sandbox_id, {})
            tree["/out"] = (tree.get("/in") or b"").upper()
            self.write_output(order.session_id, b"42\n")
            self.exit_process(order.session_id, 3)
        return status


def request(**changes: object) -> RunRequest:
    return RunRequest(
        **{"sandbox": SandboxSpec(template="base"), "command": command("prog"), **changes}  # type: ignore[arg-type]
    )


async def nothing_left(parts: CommandPlane) -> None:
    async with asyncio.timeout(10):
        while parts.plane.node.machines:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await parts.runs.aclose()
    page = await parts.plane.sandboxes.list(parts.who, SandboxFilter(), limit=100, cursor=None)
    assert {sandbox.shown_state for sandbox in page.items} <= {"deleting", "deleted"}


async def test_files_go_in_a_command_runs_and_files_come_out(tmp_path: Path) -> None:
    async with command_plane(tmp_path, node=RunNode()) as parts:
        done = await parts.runs.run(
            parts.call("run"),
            request(files_in=[FileIn(path="/in", data=b"abc", mode=0o600)], files_out=["/out", "/none", "/in"]),
        )
        assert (done.result.exit_code, done.result.stdout) == (3, b"42\n")
        assert [file.data for file in done.files] == [b"ABC", None, b"abc"]
        assert isinstance(done.files[1].error, NotFound)
        await nothing_left(parts)
        # The output stays readable: the answer may have left some of it out.
        process = await parts.commands.get(parts.who, done.sandbox_id, done.result.process_id)
        assert process.exit_code == 3


async def test_a_file_that_is_too_large_to_answer_with_is_an_error_in_its_place(tmp_path: Path) -> None:
    async with command_plane(tmp_path, node=RunNode()) as parts:
        done = await parts.runs.run(
            parts.call("run"),
            request(files_in=[FileIn(path="/in", data=b"x" * 10_000)], files_out=["/out"], max_file_bytes=9_999),
        )
        assert isinstance(done.files[0].error, PayloadTooLarge)
        assert done.result.exit_code == 3


async def test_files_that_are_too_large_together_are_errors_from_there_on(tmp_path: Path) -> None:
    async with command_plane(tmp_path, node=RunNode()) as parts:
        done = await parts.runs.run(
            parts.call("run"), request(files_in=[FileIn(path="/in", data=b"x" * (3 << 20))], files_out=["/out"] * 20)
        )
        assert [file.data is not None for file in done.files] == [True] * 5 + [False] * 15
        assert {type(file.error) for file in done.files[5:]} == {PayloadTooLarge}


async def test_a_machine_that_does_not_start_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    node = RunNode()
    node.failures = [RuntimeFailed("boot failed")] * 10
    async with command_plane(tmp_path, node=node, max_attempts=1) as parts:
        with pytest.raises(SpaceError):
            await parts.runs.run(parts.call("run"), request())
        await nothing_left(parts)


async def test_a_guest_that_does_not_answer_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    class DeafNode(RunNode):
        async def start_process(self, ref, order):  # type: ignore[no-untyped-def]
            raise GuestUnreachable("no answer")

    async with command_plane(tmp_path, node=DeafNode()) as parts:
        with pytest.raises(GuestUnreachable):
            await parts.runs.run(parts.call("run"), request())
        await nothing_left(parts)


@pytest.mark.parametrize("moment", ["boot", "command"])
async def test_a_caller_that_leaves_takes_its_sandbox_along(tmp_path: Path, moment: str) -> None:
    node = RunNode()
    node.hangs = True
    if moment == "boot":
        node.gate = asyncio.Event()
    async with command_plane(tmp_path, node=node) as parts:
        running = asyncio.create_task(parts.runs.run(parts.call("run"), request()))
        async with asyncio.timeout(5):
            if moment == "boot":
                await node.entered.wait()
            while moment == "command" and not node.sessions:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        if node.gate is not None:
            node.gate.set()
        await nothing_left(parts)


async def test_a_caller_that_leaves_before_it_knows_its_sandbox_takes_it_along(tmp_path: Path) -> None:
    async with command_plane(tmp_path, node=RunNode()) as parts:
        running = asyncio.create_task(parts.runs.run(parts.call("run"), request()))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await nothing_left(parts)


async def test_what_a_kill_9_leaves_is_deleted_by_its_lifetime(tmp_path: Path) -> None:
    node = RunNode()
    node.hangs = True
    async with command_plane(tmp_path, node=node) as parts:
        running = asyncio.create_task(
            parts.runs.run(parts.call("run"), request(command=command("sleep", "9", timeout_seconds=60)))
        )
        async with asyncio.timeout(5):
            while not node.sessions:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        (sandbox_id,) = node.machines
        sandbox = await parts.plane.get(sandbox_id)
        assert sandbox.expires_at is not None
        assert (sandbox.expires_at - sandbox.created_at).total_seconds() == 60 + 180
        assert sandbox.auto_lifecycle.on_idle == "none"
        (session,) = node.sessions.values()
        assert session.order.spec.timeout_seconds == 60
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_shorter_lifetime_that_was_asked_for_is_kept(tmp_path: Path) -> None:
    node = RunNode()
    async with command_plane(tmp_path, node=node) as parts:
        spec = SandboxSpec(template="base", auto_lifecycle=AutoLifecycle(max_lifetime_seconds=30))
        done = await parts.runs.run(parts.call("run"), request(sandbox=spec))
        sandbox = await parts.plane.get(done.sandbox_id)
        assert sandbox.auto_lifecycle.max_lifetime_seconds == 30
        (session,) = node.sessions.values()
        assert session.order.spec.timeout_seconds == 3600  # a command without a timeout gets the longest


@pytest.mark.parametrize(
    "changes",
    [
        {"max_output_bytes": -1},
        {"max_file_bytes": 1 << 40},
        {"files_out": ["/x"] * 101},
        {"files_in": [FileIn(path="/x", data=b"")] * 101},
        {"command": command(start_now=True)},
        {"command": command("")},
        {"files_in": [FileIn(path="relative", data=b"")]},
        {"files_out": ["relative"]},
    ],
)
async def test_nonsense_is_refused_before_a_sandbox_is_made(tmp_path: Path, changes: dict[str, object]) -> None:
    node = RunNode()
    async with command_plane(tmp_path, node=node) as parts:
        with pytest.raises((InvalidRequest, PayloadTooLarge)):
            await parts.runs.run(parts.call("run"), request(**changes))
        assert node.started == []

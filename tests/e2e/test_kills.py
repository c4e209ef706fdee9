"""`kill -9` of the server between any two statements of a suspend, a wake and a fork, while a command is counting.

Whatever the place: the change ends as it was asked for, the reader of the stream sees each line once, and a delete
leaves nothing.  A few places are part of every run, all of them of the long one.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.guests import ASK, COUNTER, numbers, numbers_after_returns, python
from tests.e2e.instance import Instance

from space.sdk import Command, ProcessExited, RolledBack, Sandbox, SpaceError

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

#: Places that a suspend, a fork and a snapshot have in common; `KIND` is the operation's.
SAVE = (
    "KIND.admitted",
    "KIND.before_checkpoint_machine",
    "pause.after_note",
    "pause.after_pause",
    "checkpoint.before_freeze",
    "checkpoint.after_freeze",
    "gvisor.after_checkpoint",
    "checkpoint.after_image",
    "plan.after_rename",
    "plan.after_hashing",
    "plan.after_naming",
    "plan.before_plan",
    "checkpoint.after_plan",
    "KIND.after_checkpoint_machine",
    "KIND.recorded_checkpoint_machine",
    "KIND.after_pin_chunks",
    "KIND.recorded_pin_chunks",
    "upload.before_chunk",
    "upload.after_chunk",
    "upload.after_chunk:3",
    "upload.after_chunks",
    "upload.after_manifest",
    "upload.after_result",
    "upload.after_rename",
    "KIND.after_upload_snapshot",
    "KIND.recorded_upload_snapshot",
    "KIND.finished",
)
SUSPEND = (*SAVE, "release.after_record", "bury.after_stop", "bury.after_slot", "release.after_end")
WAKE = (
    "wake.admitted",
    "wake.before_wake_machine",
    "open.after_chunk",
    "open.after_chunk:5",
    "open.before_rename",
    "restore.after_fetch",
    "ensure.after_generation",
    "record.after_directory",
    "ensure.after_intent",
    "gvisor.before_restore",
    "gvisor.after_restore",
    "ensure.after_start",
    "continuity.after_journal",
    "ensure.after_prepare",
    "ensure.after_handle",
    "personalise.after_agent",
    "record.after_token",
    "ensure.after_ready",
    "wake.after_wake_machine",
    "wake.finished",
)
#: After the moment is durable the children start, as machines of creates.
CHILDREN = (
    "create.admitted",
    "create.before_start_machine",
    "ensure.after_intent",
    "gvisor.after_restore",
    "ensure.after_handle",
    "record.after_token",
    "ensure.after_ready",
    "create.after_start_machine",
    "create.after_start_machine:2",
    "create.finished",
)
_NO_FREEZE = {"pause.after_note", "pause.after_pause"}  # a fork saves a machine that goes on


def places(names: tuple[str, ...], kind: str, always: set[str]) -> list[Any]:
    """Return them as parameters: those that are not in `always` belong to the long form."""
    found = [name.replace("KIND", kind) for name in names]
    assert always <= set(found)
    return [name if name in always else pytest.param(name, marks=pytest.mark.soak) for name in found]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, templates_dir: Path) -> Iterator[Instance]:
    """One that does nothing but what it is asked for, and downloads what it wakes."""
    settings = {
        "SPACE_TEMPLATE_IMAGES": "0",
        "SPACE_SNAPSHOT_CACHE_MIB": "0",
        "SPACE_SLOTS_AHEAD": "2",
        "SPACE_LEASE_SECONDS": "3",
    }
    made = Instance(tmp_path_factory.mktemp("killed") / "space", templates_dir, settings)
    try:
        made.up()
        yield made
    finally:
        made.remove()


class Counting:
    """A sandbox in which a command counts, and somebody who reads along from the beginning."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.command: Command = sandbox.start(["python3", "-c", COUNTER], detached=True)
        self.events: list[object] = []
        self._reader = threading.Thread(target=lambda: self.events.extend(self.command.events()), daemon=True)
        self._reader.start()
        self.asked = self.ask()

    def ask(self) -> int:
        self.asked = int(python(self.sandbox, ASK))
        return self.asked

    def is_whole(self) -> None:
        """End it; every line must have come once, and nothing may have been taken back."""
        before = self.asked
        assert self.ask() > before, "the same counter answers, and has gone on"
        self.command.kill()
        self._reader.join(60)
        assert not self._reader.is_alive()
        assert not any(isinstance(event, RolledBack) for event in self.events)
        self._counts(numbers(self.events), self.events)

    def is_whole_to_a_new_reader(self) -> None:
        """End it; its machine was lost on the way, of which whoever read along was told."""
        self.ask()
        self.command.kill()
        self._reader.join(60)
        assert not self._reader.is_alive()
        events = list(self.sandbox.attach(self.command.process_id).events(start=0))
        self._counts(numbers_after_returns(events), events)

    def _counts(self, seen: list[int], events: list[object]) -> None:
        assert seen == list(range(1, len(seen) + 1)), "every line once, in order"
        assert len(seen) >= self.asked
        assert isinstance(events[-1], ProcessExited)

    def give_up(self) -> None:
        """Wait for the end of the stream of a sandbox that is gone."""
        self._reader.join(60)
        assert not self._reader.is_alive()


def killed_at(server: Instance, place: str, change: Callable[[], Any], *, machines_of: str = "") -> Any:
    """Make a change on a server that dies at `place`; return what it comes to once the next server runs.

    With `machines_of` the machines of that sandbox die too, before the next server starts.
    """
    name, _, count = place.partition(":")
    server.kill_9()
    server.up(SPACE_FAILPOINT=f"{name}:kill:{count or 1}")
    answers: list[Any] = []

    def call() -> None:
        try:
            answers.append(change())
        except BaseException as error:
            answers.append(error)

    (pid,) = server.pids
    caller = threading.Thread(target=call)
    caller.start()
    try:
        deadline = time.monotonic() + 60
        while is_alive(pid):
            assert time.monotonic() < deadline, f"the server does not come by {place}"
            time.sleep(0.02)
        for sentry in server.machine_pids(machines_of) if machines_of else ():
            os.kill(sentry, signal.SIGKILL)
    finally:
        server.up(SPACE_FAILPOINT="")
        caller.join(150)
    assert not caller.is_alive(), "the change does not end"
    return answers[0]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def leaves_nothing(server: Instance, *sandboxes: Sandbox) -> None:
    """Delete sandboxes: no machine, no record and nothing half made may be left."""
    for sandbox in sandboxes:
        sandbox.kill()
        assert sandbox.refresh().state == "deleted"
    node = server.data_dir / "node"
    deadline = time.monotonic() + 30
    while (left := remains(node, server, sandboxes)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def remains(node: Path, server: Instance, sandboxes: tuple[Sandbox, ...]) -> list[str]:
    halves = [*node.glob("staging/*"), *node.glob("images/staging/*"), *node.glob("images/incoming/*")]
    machines = [path for sandbox in sandboxes for path in node.glob(f"machines/{sandbox.id}*")]
    pids = [f"process {pid}" for sandbox in sandboxes for pid in server.machine_pids(sandbox.id)]
    return [str(path.relative_to(node)) for path in (*halves, *machines)] + pids


@pytest.mark.parametrize(
    "place",
    places(SUSPEND, "suspend", {"checkpoint.after_image", "upload.after_chunk:3", "suspend.recorded_upload_snapshot"}),
)
def test_a_suspend_during_which_the_server_is_killed_is_finished_and_loses_no_line(
    server: Instance, place: str
) -> None:
    with server.client() as client:
        counting = Counting(Sandbox.create("base", memory_mib=256, client=client))
        sandbox = counting.sandbox
        answer = killed_at(server, place, sandbox.suspend)
        assert not isinstance(answer, BaseException), answer
        assert (sandbox.refresh().state, sandbox.info.operation_id) == ("suspended", None)
        sandbox.wake()
        counting.is_whole()
        leaves_nothing(server, sandbox)


@pytest.mark.parametrize(
    "place", places(WAKE, "wake", {"open.after_chunk:5", "ensure.after_handle", "wake.after_wake_machine"})
)
def test_a_wake_during_which_the_server_is_killed_is_finished_and_loses_no_line(server: Instance, place: str) -> None:
    with server.client() as client:
        counting = Counting(Sandbox.create("base", memory_mib=256, client=client))
        sandbox = counting.sandbox
        sandbox.suspend()
        answer = killed_at(server, place, sandbox.wake)
        assert not isinstance(answer, BaseException), answer
        assert (sandbox.refresh().state, sandbox.info.operation_id) == ("running", None)
        assert len(server.machine_pids(sandbox.id)) == 1
        counting.is_whole()
        leaves_nothing(server, sandbox)


@pytest.mark.parametrize(
    "place",
    [
        *places(tuple(name for name in SAVE if name not in _NO_FREEZE), "fork", {"fork.after_pin_chunks"}),
        *places(CHILDREN, "create", {"create.after_start_machine"}),
    ],
)
def test_a_fork_during_which_the_server_is_killed_makes_all_its_children_once(server: Instance, place: str) -> None:
    with server.client() as client:
        counting = Counting(Sandbox.create("base", memory_mib=256, client=client))
        sandbox = counting.sandbox
        others = {info.id for info in client.sandboxes()}
        children = killed_at(server, place, lambda: sandbox.fork(2))
        assert not isinstance(children, BaseException), children
        assert [getattr(child, "id", child) for child in children] == [child.id for child in children]
        made = {info.id for info in client.sandboxes() if info.state != "deleted"} - others
        assert made == {child.id for child in children}
        for child in children:
            child.wait_running()
            assert len(server.machine_pids(child.id)) == 1
            first = int(python(child, ASK))
            assert int(python(child, ASK)) > first, "the counter goes on in it"
        counting.is_whole()
        leaves_nothing(server, sandbox, *children)


@pytest.mark.parametrize(
    ("place", "state"),
    [
        pytest.param("checkpoint.after_freeze", "failed", marks=pytest.mark.soak),
        pytest.param("checkpoint.after_image", "failed", marks=pytest.mark.soak),
        ("upload.after_chunk", "failed"),
        pytest.param("upload.after_manifest", "failed", marks=pytest.mark.soak),
        pytest.param("suspend.finished", "suspended", marks=pytest.mark.soak),
        pytest.param("release.after_record", "suspended", marks=pytest.mark.soak),
    ],
)
def test_a_machine_that_dies_with_the_server_is_suspended_if_its_moment_was_published_and_else_failed(
    server: Instance, place: str, state: str
) -> None:
    with server.client() as client:
        counting = Counting(Sandbox.create("base", memory_mib=256, client=client))
        sandbox = counting.sandbox
        answer = killed_at(server, place, sandbox.suspend, machines_of=sandbox.id)
        assert (sandbox.refresh().state, sandbox.info.operation_id) == (state, None)
        if state == "suspended":
            assert not isinstance(answer, BaseException), answer
            sandbox.wake()
            counting.is_whole_to_a_new_reader()
        else:
            assert isinstance(answer, SpaceError)
            assert sandbox.info.reason
            if sandbox.info.restorable:  # its moment had become durable
                sandbox.recover()
                counting.is_whole_to_a_new_reader()
        leaves_nothing(server, sandbox)
        counting.give_up()


@pytest.mark.parametrize(
    "place",
    places(
        ("ensure.after_start", "ensure.after_handle", "record.after_token", "ensure.after_ready"),
        "wake",
        {"ensure.after_handle"},
    ),
)
def test_a_machine_that_dies_with_the_server_during_a_wake_is_started_again_and_loses_no_line(
    server: Instance, place: str
) -> None:
    with server.client() as client:
        counting = Counting(Sandbox.create("base", memory_mib=256, client=client))
        sandbox = counting.sandbox
        sandbox.suspend()
        answer = killed_at(server, place, sandbox.wake, machines_of=sandbox.id)
        assert not isinstance(answer, BaseException), answer
        assert (sandbox.refresh().state, sandbox.info.operation_id) == ("running", None)
        counting.is_whole_to_a_new_reader()
        leaves_nothing(server, sandbox)

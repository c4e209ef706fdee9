"""Cases 1-7, 9 and 14 of the faults that users of similar systems reported: state over suspend and wake, on gVisor."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.guests import ASK, COUNTER, numbers, python, settled
from tests.e2e.instance import Instance

from space.sdk import (
    Client,
    FailedPreconditionError,
    Output,
    ProcessExited,
    RateLimitedError,
    RolledBack,
    Sandbox,
    SandboxLost,
    SpaceError,
)

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

CYCLES = 5
IDENTITY = """
import os, pathlib, socket, uuid
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.connect(("192.0.2.1", 9))  # sends nothing
machine = pathlib.Path("/etc/machine-id").read_text().strip()
print(socket.gethostname(), probe.getsockname()[0], machine, uuid.uuid4(), os.urandom(16).hex())
"""
ADD_ROW = """
import sqlite3, sys
database = sqlite3.connect("/home/user/rows.db")
database.execute("create table if not exists rows (cycle integer)")
database.execute("insert into rows values (?)", (int(sys.argv[1]),))
database.commit()
"""
ROWS = """
import sqlite3
print(*(cycle for cycle, in sqlite3.connect("/home/user/rows.db").execute("select cycle from rows order by rowid")))
"""

#: One process is held back by its own limit; several, and shared memory, are more than the machine has.
HOG = """
head -c 60M /dev/zero > /dev/shm/hog
for each in 1 2 3 4; do python3 -c "hog = []
while True: hog.append(b'x' * 1000000)" & done
sleep 600
"""


def test_five_cycles_keep_files_rows_counter_listener_and_stream(sandbox: Sandbox) -> None:
    """Case 1 (E2B#884), and all that runs beside it: nothing of any cycle is lost, and the stream has no gap."""
    counter = sandbox.start(["python3", "-c", COUNTER], detached=True)
    events: list[object] = []
    reader = threading.Thread(target=lambda: events.extend(counter.events()))
    reader.start()
    asked = 0
    for cycle in range(CYCLES):
        sandbox.files.write(f"/home/user/cycle_{cycle}", f"cycle {cycle}".encode())
        python(sandbox, ADD_ROW, str(cycle))
        assert sandbox.suspend().state == "suspended"
        assert sandbox.wake().state == "running"
        for earlier in range(cycle + 1):
            assert sandbox.files.read(f"/home/user/cycle_{earlier}") == f"cycle {earlier}".encode()
        assert python(sandbox, ROWS).split() == [str(earlier) for earlier in range(cycle + 1)]
        before, asked = asked, int(python(sandbox, ASK))
        assert asked > before, "the same counter answers on the same listener, and has gone on"
    counter.kill()
    reader.join(60)
    assert not reader.is_alive()
    seen = numbers(events)
    assert seen == list(range(1, len(seen) + 1)), "every line once, in order"
    assert len(seen) >= asked
    assert isinstance(events[-1], ProcessExited)


def test_a_wake_that_the_object_store_fails_can_be_tried_again(make_instance: Callable[..., Instance]) -> None:
    """Case 2 (E2B#736): the second wake fails; the sandbox is still suspended, and the third works."""
    instance = make_instance(SPACE_SNAPSHOT_CACHE_MIB="0")  # so that a wake needs the object store
    with instance.client() as client, Sandbox.create("base", client=client) as sandbox:
        sandbox.files.write("/home/user/kept", b"kept")
        sandbox.suspend()
        sandbox.wake()
        sandbox.suspend()
        with without_objects(instance), pytest.raises(SpaceError) as caught:
            sandbox.wake()
        assert (caught.value.code, caught.value.retryable) == ("service_unavailable", True)
        assert sandbox.refresh().state == "suspended"
        sandbox.wake()
        assert sandbox.files.read("/home/user/kept") == b"kept"


@contextlib.contextmanager
def without_objects(instance: Instance) -> Iterator[None]:
    """Break the object store: where its directory was there is a file."""
    objects = instance.data_dir / "objects"
    away = instance.data_dir / "objects-away"
    objects.rename(away)
    objects.touch()
    try:
        yield
    finally:
        objects.unlink()
        away.rename(objects)


@pytest.mark.parametrize(
    ("count", "cycles"), [(4, 5), pytest.param(20, 50, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_waking_straight_after_a_pause_always_wakes(client: Client, count: int, cycles: int) -> None:
    """Case 3 (CubeSandbox#13): without delay, many times, at once: each runs, answers and goes cleanly."""
    problems: list[BaseException] = []

    def live() -> None:
        try:
            sandbox = Sandbox.create("base", client=client)
            for _ in range(cycles):
                sandbox.pause(wait=False)
                sandbox.wake()
                assert sandbox.info.state == "running"
            assert sandbox.exec(["echo", "here"]).stdout == "here\n"
            sandbox.kill()
            assert sandbox.refresh().state == "deleted"
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=live) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


@pytest.mark.parametrize("is_watched", [True, False], ids=["watched", "while the server was down"])
def test_a_paused_sandbox_whose_machine_dies_is_failed_and_can_be_deleted(instance: Instance, is_watched: bool) -> None:
    """Case 4 (CubeSandbox#985, #1521)."""
    with instance.client() as client:
        sandbox = Sandbox.create("base", client=client)
        sandbox.pause()
        (sentry,) = instance.machine_pids(sandbox.id)
        if not is_watched:
            instance.kill_9()
        os.kill(sentry, signal.SIGKILL)
        if not is_watched:
            instance.up()
        settled(sandbox, "failed", seconds=10)  # reconciled every 5 s
        assert sandbox.info.reason
        assert not sandbox.info.restorable
        with pytest.raises(SpaceError) as caught:
            sandbox.wake()
        assert not caught.value.retryable, "nothing is tried for ever"
        sandbox.kill()
        assert sandbox.refresh().state == "deleted"
        assert instance.machine_pids(sandbox.id) == []
        log = instance.data_dir / "log/up.log"
        said = log.stat().st_size
        time.sleep(6)  # longer than it takes to reconcile
        with log.open() as file:
            file.seek(said)
            assert sandbox.id not in file.read(), "whoever sweeps has done with it"


def test_a_sandbox_that_ran_out_of_memory_comes_back_with_its_files(instance: Instance) -> None:
    """Case 5 (daytona#2490): the same id, its files, and asking twice is harmless, each time that it happens."""
    with instance.client() as client, Sandbox.create("base", memory_mib=128, client=client) as sandbox:
        sandbox.files.write("/home/user/kept", b"kept")
        sandbox.suspend()
        sandbox.wake()
        before = sandbox.id
        for _ in range(2):
            hog = sandbox.start(["sh", "-c", HOG], detached=True)
            settled(sandbox, "failed")
            assert sandbox.info.reason == "oom"
            assert sandbox.info.restorable
            assert hog.info().state == "lost"
            sandbox.recover(wait=False)
            assert sandbox.recover().state == "running", "while it is under way"
            assert sandbox.recover().state == "running"
            assert sandbox.id == before
            assert sandbox.files.read("/home/user/kept") == b"kept"
            assert len(instance.machine_pids(sandbox.id)) == 1


def test_recovering_takes_a_process_back_and_its_stream_says_to_where(instance: Instance) -> None:
    with instance.client() as client, Sandbox.create("base", client=client) as sandbox:
        counter = sandbox.start(["python3", "-c", COUNTER], detached=True)
        python(sandbox, ASK)
        sandbox.suspend()
        sandbox.wake()
        lost_at = int(python(sandbox, ASK))
        (sentry,) = instance.machine_pids(sandbox.id)
        os.kill(sentry, signal.SIGKILL)
        assert isinstance(list(counter.events())[-1], SandboxLost)
        settled(sandbox, "failed")
        sandbox.recover()
        received, returned_to = b"", None
        for event in sandbox.attach(counter.process_id).events():
            if isinstance(event, RolledBack):
                returned_to = event.stdout_offset
                assert 0 < returned_to <= len(received)
                received = received[:returned_to]
            elif isinstance(event, Output):
                assert event.offset == len(received)
                received += event.data
                if returned_to is not None and int(received.split()[-1]) > lost_at:
                    break
        seen = [int(line) for line in received.split()]
        assert seen == list(range(1, len(seen) + 1)), "it goes on from where it returned to"
        assert counter.info().state == "running"
        counter.kill()
        deadline = time.monotonic() + 10
        while counter.info().state == "running":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert counter.info().signal == "SIGKILL"


def test_a_stream_goes_on_over_a_restart_of_the_server_while_its_sandbox_sleeps(instance: Instance) -> None:
    with instance.client() as client, Sandbox.create("base", client=client) as sandbox:
        counter = sandbox.start(["python3", "-c", COUNTER], detached=True)
        events: list[object] = []
        reader = threading.Thread(target=lambda: events.extend(counter.events()))
        reader.start()
        python(sandbox, ASK)
        sandbox.suspend()
        instance.kill_9()
        instance.up()
        assert (sandbox.refresh().state, counter.info().state) == ("suspended", "running")
        sandbox.wake()
        reached = int(python(sandbox, ASK))
        counter.kill()
        reader.join(60)
        assert not reader.is_alive()
        seen = numbers(events)
        assert seen == list(range(1, len(seen) + 1)), "every line once, in order"
        assert len(seen) >= reached
        assert isinstance(events[-1], ProcessExited)


def test_a_fork_says_per_child_what_happened(instance: Instance) -> None:
    """Case 6 (CubeSandbox#1648): five wanted, room for three; the source is untouched."""
    with instance.client() as client, Sandbox.create("base", client=client) as sandbox:
        counter = sandbox.start(["python3", "-c", COUNTER], detached=True)
        python(sandbox, ASK)
        (project,) = client.get("/v1/projects")["items"]
        quotas = {"quotas": {"max_sandboxes": 4}}
        client.transport.request("PATCH", f"/v1/projects/{project['id']}", json=quotas)
        children = sandbox.fork(5)
        made = [child for child in children if isinstance(child, Sandbox)]
        errors = [child for child in children if not isinstance(child, Sandbox)]
        assert [child.info.state for child in made] == ["running"] * 3
        assert [type(error) for error in errors] == [RateLimitedError] * 2
        counts = [int(python(child, ASK)) for child in made]
        assert all(counts), "the counter goes on in each of them"
        identities = [python(each, IDENTITY).split() for each in [sandbox, *made]]
        assert [identity[0] for identity in identities] == [each.id for each in [sandbox, *made]]
        for kind in zip(*identities, strict=True):
            assert len(set(kind)) == 4, f"they share neither name, address nor randomness, but here {kind}"
        assert sandbox.refresh().state == "running"
        assert counter.info().state == "running"
        first = int(python(sandbox, ASK))
        assert int(python(sandbox, ASK)) >= first
        for child in made:
            child.kill()


def test_the_clock_is_right_after_a_minute_of_sleep(sandbox: Sandbox) -> None:
    """Case 7 (forkd#288): within half a second of the host's."""
    sandbox.suspend()
    time.sleep(60)
    sandbox.wake()
    before = time.time()
    guest = float(sandbox.exec(["date", "+%s.%N"]).stdout)
    after = time.time()
    assert before - 0.5 <= guest <= after + 0.5


OPEN = """
import os, socket, threading, time
gone = open("/home/user/gone", "w+")
gone.write("kept in a file without a name")
gone.flush()
os.unlink("/home/user/gone")
listener = socket.create_server(("0.0.0.0", 7000))
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.connect(("192.0.2.1", 9))  # sends nothing
near = socket.create_connection(("127.0.0.1", 7000))
far, _ = listener.accept()
own = socket.create_connection((probe.getsockname()[0], 7000))
peer, _ = listener.accept()
probe.close()
near.sendall(b"on its way")
print("ready", flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.05)
gone.seek(0)
print(gone.read(), os.path.exists("/home/user/gone"))
print(far.recv(100).decode())
far.sendall(b"and back")
print(near.recv(100).decode())
try:
    own.sendall(b"to the old address")
    peer.settimeout(5)
    print("served" if peer.recv(100) == b"to the old address" else "closed")
except OSError:
    print("closed")
print("over", flush=True)
"""


def test_a_deleted_open_file_and_connected_sockets_go_on_after_a_suspend(sandbox: Sandbox) -> None:
    """Case 9 (gvisor#11439, #11425, #113): within the guest both work; what was to the old address may be closed."""
    command = sandbox.start(["python3", "-c", OPEN], detached=True)
    events = iter(command.events())
    while not (isinstance(event := next(events), Output) and b"ready" in event.data):
        pass
    assert sandbox.suspend().state == "suspended"
    assert sandbox.wake().state == "running"
    sandbox.exec(["touch", "/tmp/go"])
    rest = list(events)
    printed = b"".join(event.data for event in rest if isinstance(event, Output)).decode().splitlines()
    assert printed[:3] == ["kept in a file without a name False", "on its way", "and back"]
    assert printed[3] in ("served", "closed")
    assert printed[4:] == ["over"]
    assert isinstance(rest[-1], ProcessExited)
    assert rest[-1].exit_code == 0


@pytest.mark.parametrize("change", ["suspend", "snapshot", "fork"])
def test_a_session_of_runsc_exec_is_named_and_the_sandbox_goes_on_running(
    server: Instance, sandbox: Sandbox, change: str
) -> None:
    """Case 9 (gvisor#11439): only an operator can open one; saved with it, the machine could not be restored."""
    (sentry,) = server.machine_pids(sandbox.id)
    counter = sandbox.start(["python3", "-c", COUNTER], detached=True)
    before = int(python(sandbox, ASK))
    with exec_session(server, sentry) as is_over:
        answer: object = None
        try:
            answer = getattr(sandbox, change)()
        except SpaceError as error:
            answer = error
        if change == "fork":  # each child says why it is not there
            assert isinstance(answer, list)
            (answer,) = answer
        assert isinstance(answer, FailedPreconditionError), answer
        assert "runsc exec" in str(answer)
        assert (sandbox.refresh().state, sandbox.info.operation_id) == ("running", None)
        assert server.machine_pids(sandbox.id) == [sentry], "the same machine"
        assert not is_over(), "nor was the session ended"
        assert int(python(sandbox, ASK)) > before
    with pytest.raises(FailedPreconditionError, match="runsc exec"):  # its session is over, and it runs on
        sandbox.suspend()
    sandbox.exec(["pkill", "-f", "sleep 600"], user="root")
    sandbox.suspend()
    sandbox.wake()
    assert int(python(sandbox, ASK)) > before
    counter.kill()


@contextlib.contextmanager
def exec_session(server: Instance, sentry: int) -> Iterator[Callable[[], bool]]:
    """Hold a session of `runsc exec` open in the machine of a sentry; gives whether it has ended."""
    arguments = Path(f"/proc/{sentry}/cmdline").read_bytes().decode().split("\0")
    (root,) = (argument for argument in arguments if argument.startswith("--root="))
    argv = ["runsc", root, "exec", arguments[-2], "/bin/sh", "-c", "echo in; exec sleep 600"]
    session = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert session.stdout is not None
        assert session.stdout.readline() == b"in\n"
        yield lambda: session.poll() is not None
    finally:
        session.kill()
        session.wait()
        assert session.stdout is not None
        session.stdout.close()


def test_a_process_is_listed_attached_to_and_killed_over_a_suspend(sandbox: Sandbox) -> None:
    """Case 14 (mitos#774): and killing it twice is harmless."""
    command = sandbox.start(["sh", "-c", "echo begun; exec sleep 600"], detached=True)
    events = iter(command.events())
    assert [type(next(events)).__name__ for _ in range(2)] == ["ProcessStarted", "Output"]
    sandbox.suspend()
    (listed,) = sandbox.processes()
    assert (listed.id, listed.state) == (command.process_id, "running")
    sandbox.wake()
    (listed,) = sandbox.processes()
    assert (listed.id, listed.state) == (command.process_id, "running")
    attached = sandbox.attach(listed)
    attached.kill()
    attached.kill()
    assert attached.wait().signal == "SIGKILL"
    assert isinstance(list(events)[-1], ProcessExited), "the reader from before sees the same end"
    assert sandbox.exec("pgrep -c sleep || true").stdout.strip() == "0"


def test_a_request_wakes_a_sandbox_that_wakes_on_request(client: Client) -> None:
    life = {"wake_on_request": True}
    with Sandbox.create("base", auto_lifecycle=life, client=client) as sandbox:
        sandbox.files.write("/home/user/kept", b"kept")
        sandbox.suspend()
        assert sandbox.files.read("/home/user/kept") == b"kept"
        assert sandbox.refresh().state == "running"
        sandbox.suspend()
        results: list[str] = []
        threads = [
            threading.Thread(target=lambda: results.append(sandbox.exec(["echo", "here"]).stdout)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == ["here\n"] * 4
        wakes = [event for event in sandbox.timeline() if event.data.get("kind") == "wake"]
        assert len({event.raw["operation_id"] for event in wakes}) <= 2, "many requests share one wake"


def test_a_sandbox_goes_on_from_a_snapshot_after_its_source_is_gone(client: Client) -> None:
    source = Sandbox.create("base", client=client)
    source.start(["python3", "-c", COUNTER], detached=True)
    python(source, ASK)
    snapshot = source.snapshot("counting")
    reached = int(python(source, ASK))
    source.kill()
    with Sandbox.create(snapshot.id, client=client) as sandbox:
        assert int(python(sandbox, ASK)) >= 1
        assert reached >= 1
        assert sandbox.info.restorable
        with pytest.raises(FailedPreconditionError):  # it has no later state to come back from
            client.snapshots.delete(snapshot.id)
        sandbox.kill()
    client.snapshots.delete(snapshot.id)


def test_an_idle_sandbox_is_suspended_by_itself_and_keeps_its_last_write(client: Client) -> None:
    life = {"idle_seconds": 2, "on_idle": "suspend"}
    with Sandbox.create("base", auto_lifecycle=life, client=client) as sandbox:
        sandbox.files.write("/home/user/late", b"late")
        settled(sandbox, "suspended")
        sandbox.wake()
        assert sandbox.files.read("/home/user/late") == b"late"


def test_the_command_line_suspends_and_wakes_and_shows_it(server: Instance) -> None:
    sandbox_id = server.space("sandbox", "create").stdout.strip()
    assert server.space("sandbox", "suspend", sandbox_id).stdout.strip() == sandbox_id
    row = next(line for line in server.space("sandbox", "list").stdout.splitlines() if sandbox_id in line)
    assert row.split("\t")[1] == "suspended"
    assert server.space("sandbox", "wake", sandbox_id).stdout.strip() == sandbox_id
    assert server.space("sandbox", "exec", "--no-stdin", sandbox_id, "--", "echo", "here").stdout == "here\n"
    server.space("sandbox", "delete", sandbox_id)

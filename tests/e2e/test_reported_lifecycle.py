"""Cases 1-7 and 14 of the faults that users of similar systems reported: state over suspend and wake, on gVisor."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
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
#: In the guest: a counter that never stops, a listener that answers with the count, and both in one process.
COUNTER = r"""
import socket, sys, threading, time
count = 0
listener = socket.create_server(("127.0.0.1", 7000))
def serve():
    while True:
        connection, _ = listener.accept()
        connection.sendall(b"%d" % count)
        connection.close()
threading.Thread(target=serve, daemon=True).start()
while True:
    count += 1
    print(count, flush=True)
    time.sleep(0.05)
"""
ASK = """
import socket
with socket.create_connection(("127.0.0.1", 7000), timeout=10) as connection:
    print(connection.recv(100).decode())
"""
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


def python(sandbox: Sandbox, program: str, *arguments: str) -> str:
    """Run a program in the guest; return what it printed."""
    result = sandbox.exec(["python3", "-c", program, *arguments], timeout=60)
    assert result.ok, result.stderr
    return result.stdout


def numbers(events: list[object]) -> list[int]:
    return [int(line) for line in b"".join(event.data for event in events if isinstance(event, Output)).split()]


def settled(sandbox: Sandbox, state: str, seconds: float = 60) -> None:
    """Wait for a state, whatever operations fail on the way."""
    deadline = time.monotonic() + seconds
    while sandbox.refresh().state != state:
        assert time.monotonic() < deadline, f"the sandbox is {sandbox.info.state}, not {state}"
        time.sleep(0.05)


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


def test_a_paused_sandbox_whose_machine_dies_is_failed_and_can_be_deleted(instance: Instance) -> None:
    """Case 4 (CubeSandbox#985, #1521)."""
    with instance.client() as client:
        sandbox = Sandbox.create("base", client=client)
        sandbox.pause()
        (sentry,) = instance.machine_pids(sandbox.id)
        os.kill(sentry, signal.SIGKILL)
        settled(sandbox, "failed")
        assert sandbox.info.reason
        assert not sandbox.info.restorable
        sandbox.kill()
        assert sandbox.refresh().state == "deleted"
        assert instance.machine_pids(sandbox.id) == []


def test_a_sandbox_that_ran_out_of_memory_comes_back_with_its_files(instance: Instance) -> None:
    """Case 5 (daytona#2490): the same id, its files, and asking twice is harmless."""
    with instance.client() as client, Sandbox.create("base", memory_mib=128, client=client) as sandbox:
        sandbox.files.write("/home/user/kept", b"kept")
        sandbox.suspend()
        sandbox.wake()
        hog = sandbox.start(["sh", "-c", HOG], detached=True)
        settled(sandbox, "failed")
        assert sandbox.info.reason == "oom"
        assert sandbox.info.restorable
        assert hog.info().state == "lost"
        before = sandbox.id
        assert sandbox.recover().state == "running"
        assert sandbox.recover().state == "running"
        assert sandbox.id == before
        assert sandbox.files.read("/home/user/kept") == b"kept"


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
        counter.kill()


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

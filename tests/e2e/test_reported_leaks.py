"""Case 23 of the faults that users of similar systems reported: leaks."""

import os
import random
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.instance import Instance

from space.sdk import Client, Sandbox, SpaceError

pytestmark = pytest.mark.root

SLOTS_AHEAD = 2


def census(instance: Instance) -> dict[str, int]:
    """Count what an instance can leave behind in the kernel and on disk."""
    tag, node = instance.tag, instance.data_dir / "node"
    mounts = Path("/proc/self/mountinfo").read_text()
    machines = len(instance.machine_pids())
    links = subprocess.run(
        ["ip", "-n", f"space-{tag}-gw", "-o", "link"], capture_output=True, text=True, check=True
    ).stdout
    return {
        "machines": machines,
        "mounts": len(re.findall(re.escape(str(instance.data_dir)), mounts)),
        # Machines' own and the gateway's, and at most as many spare ones as are kept ready, on both levels: networks
        # and whole slots.
        "surplus namespaces": max(
            0, len(list(Path("/run/netns").glob(f"space-{tag}*"))) - 1 - machines - 2 * SLOTS_AHEAD
        ),
        "surplus links": max(0, len(links.splitlines()) - 2 - machines - 2 * SLOTS_AHEAD),
        "cgroups": sum(1 for _ in Path("/sys/fs/cgroup").glob(f"*/space-{tag}/m[0-9]*")),
        "loops": sum(
            1
            for path in Path("/sys/block").glob("loop*/loop/backing_file")
            if str(instance.data_dir) in path.read_text()
        ),
        "machine records": len(list((node / "machines").iterdir())),
        "moments half made": sum(
            len(list(node.glob(place))) for place in ("staging/*", "images/staging/*", "images/incoming/*")
        ),
        "moments": len(list(node.glob("images/images/*"))) + len(list(node.glob("images/results/*"))),
        "template images": len(list(node.glob("template-images/*"))),
        "chunks": len(list(instance.data_dir.glob("objects/projects/*/chunks/*/*"))),
        "manifests": len(list(instance.data_dir.glob("objects/projects/*/manifests/*"))),
        "objects half written": len(list(instance.data_dir.glob("objects/.incoming/*"))),
        "runtime files": len(list(Path(f"/run/space/{tag}/gvisor").glob("*"))),
    }


def settle(instance: Instance, wanted: Callable[[], dict[str, int]], *, seconds: float = 90) -> dict[str, int]:
    """Wait until the census is as wanted, or time is up."""
    deadline = time.monotonic() + seconds
    while (found := census(instance)) != wanted() and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def create_and_delete(client: Client) -> None:
    Sandbox.create("base", client=client).kill(timeout=120)


def live(client: Client) -> None:
    """Create a sandbox, do one or two things of its life, and delete it with all that came of it."""
    sandbox = Sandbox.create("base", client=client)
    made, saved = [sandbox], []
    try:
        for deed in random.sample(("sleep", "fork", "save", "pause", "use"), k=2):
            if deed == "sleep":
                sandbox.suspend()
                sandbox.wake()
            elif deed == "fork":
                made += [child for child in sandbox.fork(2) if isinstance(child, Sandbox)]
            elif deed == "save":
                saved.append(sandbox.snapshot())
            elif deed == "pause":
                sandbox.pause()
                sandbox.wake()
            else:
                sandbox.start(["sleep", "600"], detached=True)
        if random.random() < 0.5:  # some are deleted while they are at rest
            random.choice((sandbox.suspend, sandbox.pause))()
    finally:
        for each in made:
            each.kill(timeout=120)
        for snapshot in saved:
            client.snapshots.delete(snapshot.id)


#: What a kill of the server does to a call: it may be answered too late, or come twice.
EXPECTED = {"failed_precondition", "invalid_transition", "internal", "unreachable", "not_found", "conflict"}


def wear_out(instance: Instance, client: Client, life: Callable[[Client], None], count: int, most_kills: int) -> None:
    """Lead so many lives, three at a time, while the server is killed again and again."""
    remaining = list(range(count))
    lock = threading.Lock()
    problems: list[BaseException] = []

    def lead() -> None:
        while True:
            with lock:
                if not remaining:
                    return
                remaining.pop()
            try:
                life(client)
            except SpaceError as error:
                if not error.retryable and error.code not in EXPECTED:
                    problems.append(error)
            except BaseException as error:
                problems.append(error)

    threads = [threading.Thread(target=lead) for _ in range(3)]
    for thread in threads:
        thread.start()
    kills = 0
    while any(thread.is_alive() for thread in threads):
        time.sleep(random.uniform(1, 5))
        if kills < most_kills:
            instance.kill_9()
            instance.up()
            kills += 1
    assert problems == []
    assert kills


def collect_garbage(instance: Instance) -> None:
    """Let a day pass for the objects; whoever removes what nobody needs comes by when the server starts."""
    yesterday = time.time() - 2 * 24 * 3600
    for path in instance.data_dir.glob("objects/**/*"):
        if path.is_file():
            os.utime(path, (yesterday, yesterday))
    instance.kill_9()
    instance.up()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("life", "count", "kills"),
    [
        (create_and_delete, 100, 1000),
        (live, 30, 5),
        pytest.param(create_and_delete, 1000, 10_000, marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
        pytest.param(live, 300, 10_000, marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ],
)
def test_lives_under_kills_leak_nothing(
    make_instance: Callable[..., Instance], life: Callable[[Client], None], count: int, kills: int
) -> None:
    """Case 23 (CubeSandbox#1635): the server is killed at random moments; the census returns to where it began."""
    warm = 2 if life is live else 0
    settings = {"SPACE_POOLS": f"base={warm}"} if warm else {}
    instance = make_instance(SPACE_SLOTS_AHEAD=str(SLOTS_AHEAD), SPACE_LEASE_SECONDS="2", **settings)
    with instance.client() as client:
        Sandbox.create("base", client=client).kill()
        at_rest = {"machines": warm, "machine records": warm, "template images": 1}
        if not warm:
            at_rest |= {"cgroups": 0, "runtime files": 0}
        before = settle(instance, lambda: {**census(instance), **at_rest})
        assert before["chunks"] == before["manifests"] == 0
        (first,) = instance.pids
        descriptors = len(list(Path(f"/proc/{first}/fd").iterdir()))
        wear_out(instance, client, life, count, kills)
        for info in list(client.sandboxes()):
            client.wait(client.delete_sandbox(info.id), timeout=120)
        for snapshot in list(client.snapshots.list()):
            client.snapshots.delete(snapshot.id)
        collect_garbage(instance)
        assert settle(instance, lambda: before) == before
        assert all(info.state == "deleted" for info in client.sandboxes())
        (last,) = instance.pids
        assert abs(len(list(Path(f"/proc/{last}/fd").iterdir())) - descriptors) <= 5

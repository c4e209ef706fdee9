"""Case 23 of the faults that users of similar systems reported: leaks."""

import random
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.instance import Instance

from space.sdk import Sandbox, SpaceError

pytestmark = pytest.mark.root

SLOTS_AHEAD = 2


def census(instance: Instance) -> dict[str, int]:
    """Count what an instance can leave behind in the kernel and on disk."""
    tag = instance.tag
    mounts = Path("/proc/self/mountinfo").read_text()
    links = subprocess.run(
        ["ip", "-n", f"space-{tag}-gw", "-o", "link"], capture_output=True, text=True, check=True
    ).stdout
    return {
        "machines": len(instance.machine_pids()),
        "mounts": len(re.findall(re.escape(str(instance.data_dir)), mounts)),
        # The gateway's, and at most as many spare ones as are kept ready, on both levels: networks and whole slots.
        "surplus namespaces": max(0, len(list(Path("/run/netns").glob(f"space-{tag}*"))) - 1 - 2 * SLOTS_AHEAD),
        "surplus links": max(0, len(links.splitlines()) - 2 - 2 * SLOTS_AHEAD),
        "cgroups": sum(1 for _ in Path("/sys/fs/cgroup").glob(f"*/space-{tag}/m[0-9]*")),
        "loops": sum(
            1
            for path in Path("/sys/block").glob("loop*/loop/backing_file")
            if str(instance.data_dir) in path.read_text()
        ),
        "machine records": len(list((instance.data_dir / "node" / "machines").iterdir())),
        "runtime files": len(list(Path(f"/run/space/{tag}/gvisor").glob("*"))),
    }


def settle(instance: Instance, wanted: dict[str, int], *, seconds: float = 90) -> dict[str, int]:
    """Wait until the census is as wanted, or time is up."""
    deadline = time.monotonic() + seconds
    while (found := census(instance)) != wanted and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])])
def test_creating_and_deleting_under_kills_leaks_nothing(make_instance: Callable[..., Instance], count: int) -> None:
    """Case 23 (CubeSandbox#1635): the node is killed at random moments; the census returns to where it began."""
    instance = make_instance(SPACE_SLOTS_AHEAD=str(SLOTS_AHEAD))
    with instance.client() as client:
        Sandbox.create("base", client=client).kill()
        before = settle(instance, {**census(instance), **dict.fromkeys(("machines", "cgroups", "runtime files"), 0)})
        (first,) = instance.pids
        descriptors = len(list(Path(f"/proc/{first}/fd").iterdir()))
        remaining = list(range(count))
        lock = threading.Lock()
        problems: list[BaseException] = []

        def create_and_delete() -> None:
            while True:
                with lock:
                    if not remaining:
                        return
                    remaining.pop()
                try:
                    sandbox = Sandbox.create("base", client=client)
                    sandbox.kill(timeout=120)
                except SpaceError as error:
                    if not error.retryable and error.code not in {"failed_precondition", "internal", "unreachable"}:
                        problems.append(error)
                except BaseException as error:
                    problems.append(error)

        threads = [threading.Thread(target=create_and_delete) for _ in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(random.uniform(2, 8))
            instance.kill_9()
            instance.up()
        assert problems == []
        for info in list(client.sandboxes()):
            client.wait(client.delete_sandbox(info.id), timeout=120)
        assert settle(instance, before) == before
        assert all(info.state == "deleted" for info in client.sandboxes())
        (last,) = instance.pids
        assert abs(len(list(Path(f"/proc/{last}/fd").iterdir())) - descriptors) <= 5

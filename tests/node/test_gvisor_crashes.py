"""`kill -9` of the node between any two statements of a suspend, a wake and a binding; gVisor's machines live on."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.node import gvisor
from tests.node.gvisor import Life, gvisor_node, gvisor_order, remove_instance
from tests.node.harness import moment, new_id, output, read, shell

from space.core.errors import NotFound
from space.core.ids import PooledId
from space.core.journal import RecordKind
from space.host.instance import Instance
from space.runtimes.gvisor import found
from space.templates.agent import build_agent_dir

pytestmark = [pytest.mark.anyio, pytest.mark.root]

SUSPEND = (
    "checkpoint.before_freeze",
    "pause.after_note",
    "pause.after_pause",
    "checkpoint.after_image",
    "plan.after_hashing",
    "checkpoint.after_plan",
    "upload.after_chunk",
    "upload.after_manifest",
    "release.after_record",
    "bury.after_stop",
    "release.after_end",
)
WAKE = (
    "restore.after_fetch",
    "ensure.after_generation:kill:2",
    "ensure.after_intent:kill:2",
    "ensure.after_start:kill:2",
    "continuity.after_journal",
    "ensure.after_prepare",
    "ensure.after_handle:kill:2",
    "personalise.after_agent",
    "record.after_token",
    "ensure.after_ready:kill:2",
)
BIND = (
    "park.before_ready",
    "bind.after_generation",
    "bind.after_record",
    "personalise.after_agent",
    "record.after_token",
    "bind.after_personalise",
)


@pytest.fixture(scope="module")
def agent_dir(tmp_path_factory: pytest.TempPathFactory, templates_dir: Path) -> Path:
    return build_agent_dir(tmp_path_factory.mktemp("space") / "agent")


@pytest.fixture
async def place(tmp_path: Path, agent_dir: Path) -> AsyncIterator[tuple[Path, str]]:
    """A directory and an instance id; what they hold is removed at the end."""
    instance_id = f"node-test-{uuid.uuid4()}"
    (tmp_path / "agent").symlink_to(agent_dir)
    yield tmp_path, instance_id
    await remove_instance(tmp_path, instance_id)
    shutil.rmtree(Instance(instance_id).run_dir, ignore_errors=True)


async def new_life(directory: Path) -> Life:
    life = Life(
        machine=await gvisor_order(),
        process=shell("i=0; while [ ! -e /tmp/stop ]; do echo $i; i=$((i+1)); sleep 0.02; done"),
        moment=moment(freeze=True),
        pooled_id=PooledId(new_id("mch")),
    )
    (directory / "life").write_bytes(pickle.dumps(life))
    return life


def run_victim(place: tuple[Path, str], name: str, failpoint: str) -> int:
    setting = failpoint if ":" in failpoint else f"{failpoint}:kill"
    argv = [sys.executable, gvisor.__file__, str(place[0]), place[1], name]
    environment = {**os.environ, "SPACE_FAILPOINT": setting}
    return subprocess.run(argv, env=environment, check=False, timeout=120, stdout=subprocess.DEVNULL).returncode


def sentries(instance_id: str) -> int:
    run_dir = Instance(instance_id).run_dir / "gvisor"
    return sum(process.kind == found.SENTRY for process in found.processes(run_dir))


@pytest.mark.parametrize("failpoint", [*SUSPEND, *WAKE])
async def test_a_node_killed_during_suspend_or_wake_loses_no_byte_of_a_stream(
    place: tuple[Path, str], failpoint: str
) -> None:
    life = await new_life(place[0])
    returned = await anyio.to_thread.run_sync(run_victim, place, "suspend_and_wake", failpoint)
    assert returned == -signal.SIGKILL
    async with gvisor_node(*place) as node:
        assert sentries(place[1]) <= 1
        await life.suspend_and_wake(node, place[0])
        assert sentries(place[1]) == 1
        assert await node.report() == {life.woken.ref.sandbox_id: 2}
        stop = shell("touch /tmp/stop")
        await node.start_process(life.woken.ref, stop)
        records = await read(node, life.process.session_id)
        assert {each.kind for each in records if each.kind is not RecordKind.ROLLED_BACK} == {
            RecordKind.PROCESS_STARTED,
            RecordKind.STDOUT,
            RecordKind.PROCESS_EXITED,
        }
        lines = output(records).splitlines()
        assert lines == [b"%d" % number for number in range(len(lines))]
        await node.remove(life.woken.ref)
        assert sentries(place[1]) == 0


@pytest.mark.parametrize("failpoint", BIND)
async def test_a_node_killed_while_it_binds_gives_the_sandbox_one_machine(
    place: tuple[Path, str], failpoint: str
) -> None:
    life = await new_life(place[0])
    returned = await anyio.to_thread.run_sync(run_victim, place, "park_and_bind", failpoint)
    assert returned == -signal.SIGKILL
    async with gvisor_node(*place) as node:
        try:
            await life.park_and_bind(node, place[0])
        except NotFound:  # the machine was not ready: the create takes the next path
            await node.retire(life.pooled_id)
            await node.ensure(life.machine)
        await node.retire(life.pooled_id)
        assert not await node.parked()
        assert sentries(place[1]) == 1
        assert await node.report() == {life.machine.ref.sandbox_id: 1}
        who = shell("hostname; echo $FROM_SANDBOX")
        await node.start_process(life.machine.ref, who)
        assert output(await read(node, who.session_id)).decode().split() == [life.machine.ref.sandbox_id, "1"]
        await node.remove(life.machine.ref)
        assert sentries(place[1]) == 0

"""Suspend, wake, fork and warm machines on real gVisor."""

import shutil
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from tests.node.gvisor import gvisor_node, gvisor_order, remove_instance
from tests.node.harness import later, new_id, order, output, read, shell, snapshot, suspend

from space.core.ids import PooledId
from space.core.journal import JournalRecord, RecordKind
from space.core.node import MachineRef
from space.core.pool import PoolKey, PoolOrder
from space.host.instance import Instance
from space.node.agent import Node
from space.templates.agent import build_agent_dir

pytestmark = [pytest.mark.anyio, pytest.mark.root]


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


async def said(node: Node, ref: MachineRef, script: str) -> bytes:
    process = shell(script)
    await node.start_process(ref, process)
    return output(await read(node, process.session_id))


LISTENER = """
python3 -c '
import socket
s = socket.create_server(("127.0.0.1", 4000))
while True:
    c, _ = s.accept()
    c.sendall(b"hello")
    c.close()
'
"""
ASK = "python3 -c 'import socket; print(socket.create_connection((\"127.0.0.1\", 4000)).recv(9).decode())'"


async def test_five_suspends_keep_file_process_listener_and_stream(place: tuple[Path, str]) -> None:
    async with gvisor_node(*place) as node:
        machine = await gvisor_order()
        await node.ensure(machine)
        counter = shell("i=0; while [ ! -e /tmp/stop ]; do echo $i; i=$((i+1)); sleep 0.02; done")
        listener = shell(LISTENER)
        await node.start_process(machine.ref, counter)
        await node.start_process(machine.ref, listener)
        records: list[JournalRecord] = []

        async def follow() -> None:
            records.extend(await read(node, counter.session_id))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            for number in range(5):
                await said(
                    node, machine.ref, f"echo {number} > /home/user/cycle_{number}; echo {number} > /tmp/{number}"
                )
                machine = later(machine, await suspend(node, machine.ref))
                assert await node.report() == {}
                await node.ensure(machine)
                expected = b"".join(b"%d\n" % each for each in range(number + 1))
                assert await said(node, machine.ref, "cat /home/user/cycle_*") == expected
                assert await said(node, machine.ref, "cat /tmp/[0-9]") == expected
                assert await said(node, machine.ref, ASK) == b"hello\n"
            await said(node, machine.ref, "touch /tmp/stop")
        lines = output(records).splitlines()
        assert lines == [b"%d" % number for number in range(len(lines))]
        assert len(lines) > 20
        kinds = {each.kind for each in records}
        assert kinds == {RecordKind.PROCESS_STARTED, RecordKind.STDOUT, RecordKind.PROCESS_EXITED}
        await node.remove(machine.ref)


async def test_five_forks_differ_in_all_that_makes_a_machine(place: tuple[Path, str]) -> None:
    identity = "hostname; cat /etc/machine-id; head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid"
    async with gvisor_node(*place) as node:
        machine = await gvisor_order()
        await node.ensure(machine)
        sleeper = shell("sleep 600")
        await node.start_process(machine.ref, sleeper)
        await said(node, machine.ref, "echo of both > /home/user/a")
        restore = await snapshot(node, machine.ref)
        children = [replace(machine, ref=order().ref, restore=restore) for _ in range(5)]
        for child in children:
            await node.ensure(child)
        answers = []
        for each in (machine, *children):
            assert await said(node, each.ref, "cat /home/user/a") == b"of both\n"
            answers.append((await said(node, each.ref, identity)).splitlines())
        assert [answer[0].decode() for answer in answers] == [each.ref.sandbox_id for each in (machine, *children)]
        for column in zip(*answers, strict=True):
            assert len(set(column)) == 6
        tokens = {live.record.token for live in node._machines.live.values()}
        assert len(tokens) == 6
        for each in (machine, *children):
            await node.remove(each.ref)


async def test_a_machine_that_died_is_recovered_at_its_moment(place: tuple[Path, str]) -> None:
    async with gvisor_node(*place) as node:
        machine = await gvisor_order()
        await node.ensure(machine)
        counter = shell("for i in $(seq 40); do echo $i; sleep 0.05; done")
        await node.start_process(machine.ref, counter)
        await anyio.sleep(0.5)
        restore = await snapshot(node, machine.ref)
        await anyio.sleep(0.5)
        live = node._machines.get(machine.ref)
        await live.machine.stop()
        before = await read(node, counter.session_id)
        assert before[-1].kind is RecordKind.SANDBOX_LOST
        machine = later(machine, restore)
        await node.ensure(machine)
        after = await read(node, counter.session_id, start=before[-1].position)
        assert after[0].kind is RecordKind.ROLLED_BACK
        assert after[-1].kind is RecordKind.PROCESS_EXITED
        whole = bytearray(output(before))
        for each in after:
            if each.kind is RecordKind.STDOUT:
                assert each.stream_offset <= len(whole)
                whole[each.stream_offset :] = each.payload
        assert bytes(whole) == b"".join(b"%d\n" % number for number in range(1, 41))
        await node.remove(machine.ref)


async def test_paused_machines_stand_still_over_a_restart_of_the_node(place: tuple[Path, str]) -> None:
    counter = shell("for i in $(seq 40); do echo $i; sleep 0.05; done")
    async with gvisor_node(*place) as node:
        machine = await gvisor_order()
        await node.ensure(machine)
        await node.start_process(machine.ref, counter)
        await node.pause(machine.ref)
        before = await node.session_status(counter.session_id)
        await anyio.sleep(1)
        assert await node.session_status(counter.session_id) == before
    async with gvisor_node(*place) as node:
        await anyio.sleep(0.5)
        assert await node.session_status(counter.session_id) == before
        await node.resume(machine.ref)
        assert output(await read(node, counter.session_id)) == b"".join(b"%d\n" % number for number in range(1, 41))
        machine_ref = machine.ref
        await node.remove(machine_ref)


async def test_ten_parked_machines_are_bound_and_work(place: tuple[Path, str]) -> None:
    async with gvisor_node(*place) as node:
        kind = await gvisor_order()
        key = PoolKey(template_digest=kind.template_digest, runtime=kind.runtime, resources=kind.resources)
        pooled = [PooledId(new_id("mch")) for _ in range(10)]
        for pooled_id in pooled:
            await node.park(PoolOrder(id=pooled_id, key=key))
        machines = [replace(kind, ref=order().ref) for _ in pooled]
        for pooled_id, machine in zip(pooled, machines, strict=True):
            await node.bind(pooled_id, machine)
            answer = await said(node, machine.ref, "hostname; echo $FROM_SANDBOX; id -un")
            assert answer.decode().split() == [machine.ref.sandbox_id, "1", "user"]
        assert not await node.parked()
        for machine in machines:
            await node.remove(machine.ref)
        assert await node.report() == {}


async def test_machines_start_from_the_image_of_their_booted_template(place: tuple[Path, str]) -> None:
    async with gvisor_node(*place, template_images=2, idle_before_image=0.1) as node:
        first = await gvisor_order()
        await node.ensure(first)
        images = place[0] / "data/node/template-images"
        with anyio.fail_after(60):
            while not list(images.glob("*/image.json")):  # noqa: ASYNC110
                await anyio.sleep(0.1)
        with anyio.fail_after(60):
            while len(node._machines.live) > 1:  # noqa: ASYNC110
                await anyio.sleep(0.1)
        second = replace(first, ref=order().ref)
        await node.ensure(second)
        answers = [(await said(node, each.ref, "hostname; cat /etc/machine-id")).split() for each in (first, second)]
        assert [answer[0].decode() for answer in answers] == [first.ref.sandbox_id, second.ref.sandbox_id]
        assert answers[0][1] != answers[1][1]
        for image in images.glob("*/machine"):
            for path in image.iterdir():
                path.write_bytes(b"damaged")
        third = replace(first, ref=order().ref)
        await node.ensure(third)
        assert await said(node, third.ref, "echo works") == b"works\n"
        for each in (first, second, third):
            await node.remove(each.ref)

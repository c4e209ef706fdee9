"""The whole node on real gVisor with a root that has one static program: no Python, no libc, no loader."""

import shutil
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from tests.node.gvisor import gvisor_node, remove_instance
from tests.node.harness import DIGEST, command, eventually, order, output, read

from space.core.command import Pty
from space.core.errors import NotFound
from space.core.file import FileEvent
from space.core.journal import RecordKind
from space.core.node import MachineOrder
from space.core.sandbox import Resources
from space.core.template import Template
from space.host.instance import Instance
from space.node.agent import Node
from space.templates.agent import build_agent_dir
from space.testing.templates import FakeTemplates

pytestmark = [pytest.mark.anyio, pytest.mark.root]

APPLETS = "sh cat echo head id ls mkdir mv printenv rm seq sleep stty touch tr wc"


@pytest.fixture
def template(tmp_path: Path) -> Template:
    root = tmp_path / "rootfs"
    for name in ("bin", "dev", "etc", "home/user", "proc", "run", "sys", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin/busybox")
    for applet in APPLETS.split():
        (root / "bin" / applet).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")
    shutil.chown(root / "home/user", 1000, 1000)
    return Template(
        name="busybox",
        tag="latest",
        digest=DIGEST,
        rootfs=root,
        user="user",
        env={"PATH": "/bin"},
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        size_bytes=1,
    )


@pytest.fixture
async def sandbox(tmp_path: Path, template: Template) -> AsyncIterator[tuple[Node, MachineOrder]]:
    instance_id = f"busybox-{uuid.uuid4()}"
    (tmp_path / "agent").symlink_to(build_agent_dir(tmp_path / "agents"))
    machine = replace(order(), runtime="gvisor", resources=Resources(memory_mib=256, disk_mib=128))
    try:
        async with gvisor_node(tmp_path, instance_id, templates=FakeTemplates(template)) as node:
            await node.ensure(machine)
            yield node, machine
    finally:
        await remove_instance(tmp_path, instance_id)
        shutil.rmtree(Instance(instance_id).run_dir, ignore_errors=True)


async def test_there_is_nothing_but_busybox_in_it(sandbox: tuple[Node, MachineOrder]) -> None:
    node, machine = sandbox
    for path in ("/lib", "/lib64", "/usr"):
        with pytest.raises(NotFound):
            await node.stat_file(machine.ref, path)


async def test_commands_run_as_the_user_with_output_input_and_exit_codes(sandbox: tuple[Node, MachineOrder]) -> None:
    node, machine = sandbox
    process = command("sh", "-c", "id -u; pwd; echo $FROM_SANDBOX; tr a-z A-Z >&2; exit 7", stdin=True)
    await node.start_process(machine.ref, process)
    await node.write_stdin(machine.ref, process.process_id, b"typed")
    await node.close_stdin(machine.ref, process.process_id)
    records = await read(node, process.session_id)
    assert output(records) == b"1000\n/\n1\n"
    assert output(records, RecordKind.STDERR) == b"TYPED"
    status = await node.session_status(process.session_id)
    assert status is not None
    assert status.exit_code == 7
    missing = command("python3", "-c", "pass")
    await node.start_process(machine.ref, missing)
    status = await node.session_status(missing.session_id)
    assert status is not None
    assert status.exit_code == 127


async def test_a_terminal_has_the_size_that_it_is_given(sandbox: tuple[Node, MachineOrder]) -> None:
    node, machine = sandbox
    process = command("sh", "-c", "stty size; read line; stty size; read line; exit 3", pty=Pty(cols=81, rows=23))
    await node.start_process(machine.ref, process)
    journal = node._journals.find(process.session_id)
    assert journal is not None
    await eventually(lambda: journal.written[2] >= len("23 81\r\n"))
    await node.resize(machine.ref, process.process_id, Pty(cols=132, rows=50))
    await node.write_stdin(machine.ref, process.process_id, b"\n")
    await eventually(lambda: journal.written[2] >= len("23 81\r\n\r\n50 132\r\n"))
    await node.write_stdin(machine.ref, process.process_id, b"\n")
    records = await read(node, process.session_id)
    assert output(records, RecordKind.PTY).split() == [b"23", b"81", b"50", b"132"]
    status = await node.session_status(process.session_id)
    assert status is not None
    assert status.exit_code == 3


async def test_killing_a_command_ends_all_that_it_started(sandbox: tuple[Node, MachineOrder]) -> None:
    node, machine = sandbox
    process = command("sh", "-c", "sleep 600 & sleep 600")
    await node.start_process(machine.ref, process)
    await node.signal_process(machine.ref, process.process_id, "SIGKILL")
    with anyio.fail_after(10):
        records = await read(node, process.session_id)
    assert records[-1].kind is RecordKind.PROCESS_EXITED
    status = await node.session_status(process.session_id)
    assert status is not None
    assert status.signal == "SIGKILL"


async def test_files_are_written_read_listed_moved_and_removed(sandbox: tuple[Node, MachineOrder]) -> None:
    node, machine = sandbox
    content = bytes(range(256)) * 8192

    async def source() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 100_000):
            yield content[start : start + 100_000]

    info = await node.write_file(machine.ref, "/home/user/a/b.bin", source())
    assert (info.size, info.user) == (len(content), "user")
    await node.move_file(machine.ref, "/home/user/a/b.bin", "/home/user/c.bin")
    async with node.read_file(machine.ref, "/home/user/c.bin", start=5) as (found, chunks):
        assert b"".join([chunk async for chunk in chunks]) == content[5:]
        assert found.size == len(content)
    await node.make_directory(machine.ref, "/home/user/d")
    names = {entry.path for entry in await node.list_files(machine.ref, "/home/user")}
    assert names == {"/home/user/a", "/home/user/c.bin", "/home/user/d"}
    process = command("sh", "-c", "wc -c < /home/user/c.bin; echo mine >> /home/user/c.bin")
    await node.start_process(machine.ref, process)
    assert output(await read(node, process.session_id)).strip() == str(len(content)).encode()
    async with node.read_archive(machine.ref, "/home/user") as chunks:
        archive = b"".join([chunk async for chunk in chunks])
    assert len(archive) > len(content)

    async def whole() -> AsyncIterator[bytes]:
        yield archive

    counts = await node.write_archive(machine.ref, "/tmp/copy", whole())
    assert counts["bytes"] == len(content) + len("mine\n")
    await node.remove_file(machine.ref, "/home/user/a", recursive=True)
    assert {entry.path for entry in await node.list_files(machine.ref, "/tmp/copy")} == {
        "/tmp/copy/a",
        "/tmp/copy/c.bin",
        "/tmp/copy/d",
    }


async def test_changes_of_files_are_seen(sandbox: tuple[Node, MachineOrder]) -> None:
    node, machine = sandbox
    seen: list[FileEvent] = []

    async def watch() -> None:
        async for event in node.watch_files(machine.ref, "/home/user", recursive=True):
            seen.append(event)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        with anyio.fail_after(20):
            while not seen:  # until the watch stands
                touch = command("sh", "-c", "echo x > /home/user/first; rm /home/user/first")
                await node.start_process(machine.ref, touch)
                await read(node, touch.session_id)
                await anyio.sleep(0.1)
        script = "mkdir /home/user/in; sleep 1; echo x > /home/user/in/new; rm /home/user/in/new"
        change = command("sh", "-c", script)
        await node.start_process(machine.ref, change)
        await read(node, change.session_id)
        wanted = {("created", "/home/user/in"), ("created", "/home/user/in/new"), ("removed", "/home/user/in/new")}
        await eventually(lambda: wanted <= {(event.kind, event.path) for event in seen})
        tasks.cancel_scope.cancel()


async def test_what_it_uses_is_measured(sandbox: tuple[Node, MachineOrder]) -> None:
    node, machine = sandbox
    stats = await node.stats(machine.ref)
    assert stats["memory_bytes"] > 0
    assert stats["pids"] > 0

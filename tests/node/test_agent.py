import json

import pytest
from tests.node.harness import World, order, output, read, shell

from space.core.journal import RecordKind

pytestmark = pytest.mark.anyio


async def test_a_command_runs_and_its_output_is_read_until_its_exit(world: World) -> None:
    async with world.running() as node:
        machine = order()
        await node.ensure(machine)
        command = shell("echo out; echo err >&2; exit 7")
        status = await node.start_process(machine.ref, command)
        assert status.os_pid
        records = await read(node, command.session_id)
        assert [records[0].kind, records[-1].kind] == [RecordKind.PROCESS_STARTED, RecordKind.PROCESS_EXITED]
        assert output(records) == b"out\n"
        assert output(records, RecordKind.STDERR) == b"err\n"
        assert json.loads(records[-1].payload)["exit_code"] == 7
        await node.remove(machine.ref)
        assert await node.report() == {}
        assert world.host.machines == {}
        ended = await node.session_status(command.session_id)
        assert ended is not None
        assert (ended.exit_code, ended.stdout_bytes, ended.stderr_bytes) == (7, 4, 4)

from pathlib import Path

import pytest
from tests.node.harness import World, order

from space.core.node import MachineHandle, Slot
from space.node.record import MachineRecord

HANDLE = MachineHandle(runtime="fake", machine_id="m", pid=7, pid_start_time=8, details={"a": [1, {"b": None}]})


@pytest.fixture
def record(tmp_path: Path) -> MachineRecord:
    slot = Slot(
        index=3,
        netns="n",
        gateway_netns="g",
        guest_ip="10.0.0.2",
        gateway_ip="10.0.0.1",
        prefix_length=31,
        filestore=tmp_path / "f",
        cgroup="/c/m3",
    )
    return MachineRecord.make(tmp_path, order(), slot, World.template_at(tmp_path))


def test_a_record_is_read_as_it_was_written(record: MachineRecord) -> None:
    record.write_intent()
    assert MachineRecord.read(record.directory) == record
    record.write_handle(HANDLE)
    read = MachineRecord.read(record.directory)
    assert read is not None
    assert read.handle == HANDLE
    assert read.spec(agent_dir=Path("/a"), agent_port=1).slot == record.slot


def test_only_root_reads_tokens(record: MachineRecord) -> None:
    record.write_intent()
    assert record.directory.stat().st_mode & 0o777 == 0o700
    for path in record.directory.iterdir():
        assert path.stat().st_mode & 0o077 == 0
    assert record.token not in (record.directory / "intent.json").read_text()


@pytest.mark.parametrize("name", ["intent.json", "token"])
def test_a_record_that_is_not_whole_is_none(record: MachineRecord, name: str) -> None:
    record.write_intent()
    (record.directory / name).unlink()
    assert MachineRecord.read(record.directory) is None
    (record.directory / "intent.json").write_text('{"order": [')
    assert MachineRecord.read(record.directory) is None


def test_removing_a_record_twice_succeeds(record: MachineRecord) -> None:
    record.write_intent()
    record.write_handle(HANDLE)
    (record.directory / "runtime/sub").mkdir()
    record.remove()
    record.remove()
    assert not record.directory.exists()

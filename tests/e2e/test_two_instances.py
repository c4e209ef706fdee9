"""One instance suspends a sandbox and another wakes it, which has nothing of it but its record and the bucket."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.e2e.instance import Instance
from tests.e2e.record import move
from tests.storage.objects.s3 import BUCKET, s3_server

from space.sdk import Command, Output, Sandbox

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

COUNT = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done"
SCOPES = ["sandboxes:read", "sandboxes:write", "commands:run", "files:read", "files:write"]


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    with s3_server(tmp_path / "s3") as environment:
        yield environment


def test_another_instance_wakes_what_one_suspended_into_the_same_bucket(
    make_instance: Callable[..., Instance], s3: Mapping[str, str]
) -> None:
    settings = {**s3, "SPACE_OBJECT_STORE_URL": f"s3://{BUCKET}/snapshots"}
    first, second = make_instance(**settings), make_instance(**settings)
    with second.client() as client, Sandbox.create("base", client=client) as other:
        other.suspend()  # so that it has a node, a project and a key of its own
    with first.client() as client:
        sandbox = Sandbox.create("base", client=client)
        sandbox.files.write("/home/user/note", b"from the first")
        command = sandbox.start(["sh", "-c", COUNT], detached=True)
        seen = first_numbers(command, 10)
        sandbox.suspend()
        sandbox_id, process_id = sandbox.id, command.process_id
    first.kill_9()
    second.kill_9()
    project = move(sandbox_id, first, second)
    first.remove()
    shutil.rmtree(first.data_dir)
    second.up()

    with second.client() as admin:
        token = admin.create_token("moved", scopes=SCOPES, project=project)["token"]
    with second.client(token) as client:
        sandbox = Sandbox.connect(sandbox_id, client=client)
        assert sandbox.info.state == "suspended"
        sandbox.wake()
        assert sandbox.files.read("/home/user/note") == b"from the first"
        counted = first_numbers(sandbox.attach(process_id), 40)
        assert counted == list(range(1, 41)), "every line once, in order, those of the first instance too"
        assert counted[: len(seen)] == seen
        sandbox.kill()


def first_numbers(command: Command, count: int) -> list[int]:
    """Read whole lines from the beginning of the command's output until there are `count`."""
    printed = b""
    with command.events(start=0) as events:
        for event in events:
            if isinstance(event, Output):
                printed += event.data
            if printed.count(b"\n") >= count:
                break
    return [int(line) for line in printed.split(b"\n")[:count]]

"""The same over S3: one node suspends, another wakes, only what changed is sent."""

import os
from pathlib import Path

import pytest
from tests.node.snapshots.harness import Node, page
from tests.storage.objects.s3 import BUCKET, s3_server

from space.storage.objects import open_objects

pytestmark = [pytest.mark.anyio, pytest.mark.live]

FILES = {"machine/pages.img": os.urandom(5 << 20), "machine/checkpoint.img": b"state" * 10_000}


async def test_moments_go_from_node_to_node_through_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s3").mkdir()
    with s3_server(tmp_path / "s3") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        url = f"s3://{BUCKET}/snapshots"
        one = Node(tmp_path / "one", open_objects(url, environment))
        other = Node(tmp_path / "other", open_objects(url, environment))
        first, whole = await one.save(FILES)
        assert await other.load(first) == FILES
        after = {**FILES, "machine/checkpoint.img": page("changed")}
        second, little = await other.save(after, first)
        assert little.bytes_uploaded * 20 < whole.bytes_uploaded
        assert await one.load(second) == after

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.node.snapshots.harness import Node

from space.testing.objects import FakeObjects


@pytest.fixture
def objects() -> FakeObjects:
    return FakeObjects()


@pytest.fixture
def node(tmp_path: Path, objects: FakeObjects) -> Node:
    return Node(tmp_path / "node", objects)


@pytest.fixture
def other(tmp_path: Path, objects: FakeObjects) -> Callable[[], Node]:
    """Return a maker of further nodes with the same object store, each with an empty disk."""
    count = 0

    def make() -> Node:
        nonlocal count
        count += 1
        return Node(tmp_path / f"other-{count}", objects)

    return make

"""Two data directories with the same instance id, as a copy makes them."""

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from space.app.claim import claimed
from space.core.errors import Unavailable
from space.host.instance import Instance

pytestmark = pytest.mark.root


@pytest.fixture
def instance() -> Iterator[Instance]:
    made = Instance(f"test-{uuid.uuid4()}")
    yield made
    shutil.rmtree(made.run_dir, ignore_errors=True)


@pytest.fixture
def original(tmp_path: Path, instance: Instance) -> Path:
    place = tmp_path / "original"
    place.mkdir()
    (place / "instance-id").write_text(instance.id + "\n")
    return place


def test_a_copy_is_refused_while_a_server_runs_on_the_original(
    instance: Instance, original: Path, tmp_path: Path
) -> None:
    with claimed(instance, original):
        with pytest.raises(Unavailable, match="a server runs on"), claimed(instance, original):
            raise AssertionError("it was let in")
        with pytest.raises(Unavailable, match="seems to be a copy"), claimed(instance, tmp_path / "copy"):
            raise AssertionError("it was let in")


def test_a_copy_is_refused_while_the_original_exists(instance: Instance, original: Path, tmp_path: Path) -> None:
    with claimed(instance, original):
        pass
    with claimed(instance, original):  # its own next server
        pass
    with pytest.raises(Unavailable, match=str(original)), claimed(instance, tmp_path / "copy"):
        raise AssertionError("it was let in")


def test_a_directory_that_was_moved_takes_its_machines_along(
    instance: Instance, original: Path, tmp_path: Path
) -> None:
    with claimed(instance, original):
        pass
    moved = original.rename(tmp_path / "moved")
    with claimed(instance, moved):
        pass


def test_a_copy_that_got_an_id_of_its_own_leaves_the_name_free(
    instance: Instance, original: Path, tmp_path: Path
) -> None:
    with claimed(instance, original):
        pass
    (original / "instance-id").write_text("another\n")
    with claimed(instance, tmp_path / "copy"):
        pass

"""Keys of the object store."""

import pytest

from space.core.ids import ProjectId
from space.core.objects import chunk_key, manifest_key, name_of, project_prefix

PROJECT = ProjectId("prj" + "0" * 26)
NAME = bytes(range(32))


def test_a_key_tells_its_name() -> None:
    assert name_of(chunk_key(PROJECT, NAME)) == NAME
    assert name_of(manifest_key(PROJECT, NAME.hex())) == NAME


def test_all_keys_of_a_project_are_below_its_prefix() -> None:
    for key in (chunk_key(PROJECT, NAME), manifest_key(PROJECT, NAME.hex())):
        assert key.startswith(project_prefix(PROJECT))


@pytest.mark.parametrize(
    "key",
    ["", "projects/", f"projects/{PROJECT}/notes", f"projects/{PROJECT}/chunks/ff/{NAME.hex()}",
     f"projects/{PROJECT}/manifests/{NAME.hex()}/x", f"projects/{PROJECT}/manifests/{NAME.hex().upper()}",
     f"other/{PROJECT}/manifests/{NAME.hex()}"],
)  # fmt: skip
def test_a_key_of_something_else_has_no_name(key: str) -> None:
    assert name_of(key) is None

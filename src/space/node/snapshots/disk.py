"""What is read from a directory of a moment, and what the node's disk refuses.  Called in threads."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from space.core.errors import FailedPrecondition, RuntimeFailed
from space.node.full_disk import full_disk_refuses
from space.node.snapshots.image import INDEX, MANIFEST
from space.node.snapshots.manifest import BadManifest, Manifest, decode, decode_meta
from space.node.snapshots.pages import Index
from space.node.snapshots.staging import read_index
from space.node.snapshots.stored import MANIFEST as MANIFEST_KIND
from space.node.snapshots.stored import Damaged, unseal


@contextmanager
def disk_failures() -> Iterator[None]:
    """Turn what this node's disk refuses in the body into errors of ours."""
    try:
        with full_disk_refuses("a snapshot"):
            yield
    except OSError as error:
        raise RuntimeFailed(f"the node's disk does not take or give a snapshot: {error.strerror}") from error


def remove_directory(directory: Path) -> None:
    """Remove a directory with all that it holds; succeeds if there is none."""
    if directory.is_dir():
        shutil.rmtree(directory)


def read_manifest(directory: Path, name: str, key: bytes) -> Manifest:
    """Return the manifest of a moment; raises `FailedPrecondition` if it is damaged, or the key is another."""
    with _damage(name):
        return decode(_unsealed(directory, name, key))


def read_meta(directory: Path, name: str, key: bytes) -> Mapping[str, Any]:
    """Return the meta of a manifest that was read whole before.  Raises as `read_manifest` does."""
    with _damage(name):
        return decode_meta(_unsealed(directory, name, key))


def read_own_index(directory: Path, name: str, key: bytes) -> Index:
    """Return what a moment's chunks hold.  Raises as `read_manifest` does."""
    manifest = read_manifest(directory, name, key)
    with _damage(name):
        return read_index(manifest, (directory / INDEX).read_bytes())


def _unsealed(directory: Path, name: str, key: bytes) -> bytes:
    return unseal((directory / MANIFEST).read_bytes(), kind=MANIFEST_KIND, name=bytes.fromhex(name), key=key)


@contextmanager
def _damage(name: str) -> Iterator[None]:
    try:
        yield
    except (Damaged, BadManifest) as error:
        raise FailedPrecondition(
            f"the manifest {name} on this node is damaged, or the key is another: {error}"
        ) from error

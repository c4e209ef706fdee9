"""Where snapshots are in the object store: nodes write there, the control plane's collector removes.

projects/PROJECT/chunks/AB/ABCD…      a chunk, by its name: a keyed hash of its content
projects/PROJECT/manifests/ABCD…      a manifest, likewise
"""

import re

from space.core.ids import ProjectId

MAX_BYTES = 256 << 20  #: of one object that is read; the largest that are written are manifests of huge snapshots
_KEY = re.compile(r"projects/prj[0-9a-v]{26}/(?:chunks/([0-9a-f]{2})|manifests)/([0-9a-f]{64})")


def project_prefix(project_id: ProjectId) -> str:
    """Return what all keys of a project begin with."""
    return f"projects/{project_id}/"


def chunk_key(project_id: ProjectId, name: bytes) -> str:
    """Return where a chunk is; the folder has the first two digits, so that none gets very large."""
    return f"{project_prefix(project_id)}chunks/{name[:1].hex()}/{name.hex()}"


def manifest_key(project_id: ProjectId, name: str) -> str:
    """Return where a manifest is."""
    return f"{project_prefix(project_id)}manifests/{name}"


def name_of(key: str) -> bytes | None:
    """Return the name that a key of a chunk or a manifest ends with; None for any other key."""
    match = _KEY.fullmatch(key)
    if match is None or (match[1] is not None and not match[2].startswith(match[1])):
        return None
    return bytes.fromhex(match[2])

"""A moment that is on its way into the object store: `staging/<snapshot id>/`, an image in the making.

`plan.json` is written last and says that all of it is there.  It holds no secret; the manifest beside it is sealed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from space.core.ids import SnapshotId
from space.core.snapshot import SnapshotPlan
from space.host.failpoint import failpoint
from space.node.snapshots.chunks import hash_pages
from space.node.snapshots.image import INDEX, MANIFEST, boot_id, list_files, write_file
from space.node.snapshots.manifest import INDEX_PIECE, BadManifest, File, Manifest, check_name, encode
from space.node.snapshots.pages import CHUNK_PAGES, HASH, PAGE, Index, lay_out
from space.node.snapshots.stored import MANIFEST as MANIFEST_KIND
from space.node.snapshots.stored import name_of_content, seal

PLAN = "plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What `plan.json` says."""

    manifest: str  #: its name in hex
    first_new: int  #: number of the first chunk that the base does not have
    base: str | None  #: manifest of the base
    bytes_read: int
    bytes_new: int


def draft(
    directory: Path, snapshot_id: SnapshotId, meta: Mapping[str, Any], base: Index
) -> tuple[Manifest, int, bytes]:
    """Lay out the files in `directory`; return a manifest whose new chunks have no names yet, the pages that are new
    to the base, and the index."""
    found = list_files(directory)
    for name, _ in found:
        check_name(name)
    # Large files first: what is in the small ones changes each time, and is then together in few chunks.
    found.sort(key=lambda entry: -entry[1].st_size)
    hashes = [hash_pages(directory / name, stat.st_size) for name, stat in found]
    layout = lay_out(hashes, base)
    new = layout.new_hashes
    new_index = [new[at : at + CHUNK_PAGES * HASH] for at in range(0, len(new), CHUNK_PAGES * HASH)]
    index = [*(base.pages[chunk] for chunk in layout.reused), *new_index]
    manifest = Manifest(
        snapshot_id=snapshot_id,
        meta=meta,
        files=[
            File(name, stat.st_size, extents) for (name, stat), extents in zip(found, layout.file_extents, strict=True)
        ],
        extents=layout.extents,
        chunks=[base.chunks[chunk] for chunk in layout.reused],
        chunk_pages=[len(pages) // HASH for pages in index],
        index=[],
    )
    return manifest, layout.unknown, b"".join(index)


def finish(
    directory: Path,
    manifest: Manifest,
    new_chunks: Sequence[bytes],
    index: bytes,
    *,
    key: bytes,
    base: str | None,
    unknown: int,
) -> tuple[Planned, Manifest]:
    """Write the plan of a draft whose chunks have got their names."""
    first_new = len(manifest.chunks)
    pieces = [name_of_content(piece, key=key) for piece in index_pieces(index)]
    manifest = replace(manifest, chunks=[*manifest.chunks, *new_chunks], index=pieces)
    data = encode(manifest)
    name = name_of_content(data, key=key)
    planned = Planned(
        manifest=name.hex(),
        first_new=first_new,
        base=base,
        bytes_read=manifest.size,
        bytes_new=unknown * PAGE,
    )
    write_file(directory / INDEX, index)
    write_file(directory / MANIFEST, seal(data, kind=MANIFEST_KIND, name=name, key=key))
    failpoint("plan.before_plan")
    write_file(directory / PLAN, json.dumps({"boot_id": boot_id(), **asdict(planned)}).encode())
    return planned, manifest


def read_plan(directory: Path) -> Planned | None:
    """Return the plan; None if there is none, or only half of one, or the host was started since."""
    try:
        words = json.loads((directory / PLAN).read_bytes())
        return Planned(**words) if words.pop("boot_id") == boot_id() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def index_pieces(index: bytes) -> list[bytes]:
    """Divide an index into what one object holds."""
    return [index[at : at + INDEX_PIECE] for at in range(0, len(index), INDEX_PIECE)]


def read_index(manifest: Manifest, index: bytes) -> Index:
    """Divide an index by chunk; raises `BadManifest` if it is not the manifest's."""
    if len(index) != manifest.index_size:
        raise BadManifest("its index has another size than its chunks")
    pages: list[bytes] = []
    at = 0
    for count in manifest.chunk_pages:
        pages.append(index[at : at + count * HASH])
        at += count * HASH
    return Index(manifest.chunks, pages)


def plan_of(planned: Planned, manifest: Manifest) -> SnapshotPlan:
    """Return the plan as the control plane sees it.  The manifest is pinned like a chunk."""
    names = [*manifest.chunks, *manifest.index, bytes.fromhex(planned.manifest)]
    taken_at = manifest.meta.get("taken_at")
    return SnapshotPlan(
        chunks=list(dict.fromkeys(names)),
        bytes_read=planned.bytes_read,
        bytes_new=planned.bytes_new,
        taken_at=None if taken_at is None else datetime.fromisoformat(taken_at),
    )

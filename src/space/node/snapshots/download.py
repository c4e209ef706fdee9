"""Bringing a moment from the object store onto this disk, a few chunks at a time, each verified before it lands."""

from pathlib import Path

from space.host.failpoint import failpoint
from space.node.snapshots.chunks import by_chunk, make_files, scatter
from space.node.snapshots.image import FILES, INDEX, MANIFEST, Note, write_file, write_note
from space.node.snapshots.manifest import Manifest
from space.node.snapshots.pages import PAGE
from space.node.snapshots.remote import Remote
from space.node.snapshots.threads import AT_ONCE, each


async def download(remote: Remote, manifest: Manifest, stored: bytes, directory: Path) -> Note:
    """Make the new `directory` an image; on failure, `OSError` included, the caller removes it.

    Raises as `Remote.chunk` does.
    """
    runs = by_chunk(manifest)
    files = directory / FILES

    async def fetch(number: int) -> None:
        content = await remote.chunk(manifest.chunks[number], manifest.chunk_pages[number] * PAGE)
        await remote.threads.run(scatter, files, manifest, runs[number], content)
        failpoint("open.after_chunk")

    await remote.threads.run(make_files, files, manifest)
    await each(range(len(manifest.chunks)), fetch, at_once=AT_ONCE)
    write_file(directory / INDEX, await remote.index(manifest))
    write_file(directory / MANIFEST, stored)
    return await remote.threads.run(write_note, directory, remote.snapshot_id)

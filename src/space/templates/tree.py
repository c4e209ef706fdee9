"""The digest of a directory tree: what a template's digest is.

A digest of the result, not of its recipe: the same recipe gives other bytes once Debian publishes a fix, and a
sandbox must report what it really runs.  Two builds of the same packages on one machine have the same digest, because
nothing that differs by chance is in it: modification times, inode numbers and link counts are left out, and the builder
removes logs and caches.

The digest is SHA-256 over one line a file, in the order of the paths' bytes:
`TYPE MODE UID GID SIZE-OR-DEVICE CONTENT PATH`, where CONTENT is the SHA-256 of a regular file or of a link's target.
"""

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

HEADER = b"space-tree-v1\n"


def tree_digest(root: Path, *, on_file: Callable[[int], None] = lambda _: None) -> tuple[str, int]:
    """Return `sha256:…` of everything below `root`, and how many bytes its regular files hold.

    `on_file` is called with the number of files done so far.  Blocks: call it in a thread.
    """
    digest = hashlib.sha256(HEADER)
    total = 0
    for count, path in enumerate(sorted(_walk(os.fsencode(root))), start=1):
        info = os.lstat(path)
        name = os.path.relpath(path, os.fsencode(root))
        content, size = _content(path, info)
        if stat.S_ISREG(info.st_mode):
            total += info.st_size
        kind = stat.S_IFMT(info.st_mode)
        fields = f"{kind:o} {stat.S_IMODE(info.st_mode):o} {info.st_uid} {info.st_gid} {size} {content} {len(name)} "
        digest.update(fields.encode() + name + b"\n")
        on_file(count)
    return f"sha256:{digest.hexdigest()}", total


def _walk(root: bytes) -> list[bytes]:
    found = [root]
    for directory, directories, files in os.walk(root):
        found.extend(os.path.join(directory, name) for name in (*directories, *files))  # noqa: PTH118 - bytes paths
    return found


def _content(path: bytes, info: os.stat_result) -> tuple[str, int]:
    if stat.S_ISREG(info.st_mode):
        with open(path, "rb") as file:  # noqa: PTH123 - bytes paths
            return hashlib.file_digest(file, "sha256").hexdigest(), info.st_size
    if stat.S_ISLNK(info.st_mode):
        return hashlib.sha256(os.readlink(path)).hexdigest(), info.st_size  # noqa: PTH115 - bytes paths
    if stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
        return "-", info.st_rdev
    return "-", 0

"""Copying between this machine and a sandbox."""

import os
import posixpath
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from space.cli.failure import MISUSED, CommandError
from space.cli.follow import write_all
from space.cli.sandbox.archive import packed, unpack
from space.sdk import Files, NotFoundError

Copied = list[dict[str, Any]]


def upload(files: Files, sources: Sequence[str], target: str) -> Copied:
    """Copy local things to `target` in the sandbox."""
    is_inside = target.endswith("/") or _is_directory(files, target)
    if len(sources) > 1 and not is_inside:
        raise CommandError(
            f"{target} is no directory in the sandbox; write {target}/ to make it one", exit_code=MISUSED
        )
    copied: Copied = []
    for source in sources:
        name = "stdin" if source == "-" else Path(source).resolve().name
        place = posixpath.join(target, name) if is_inside else target
        if source == "-":
            info = files.write(place, sys.stdin.buffer)
        elif Path(source).is_dir():
            files.mkdir(place)
            files.unpack(place, packed(Path(source)))
            copied.append({"source": source, "target": place, "is_directory": True})
            continue
        else:
            mode = Path(source).stat().st_mode & 0o777
            info = files.write(place, Path(source), mode=mode)
        copied.append({"source": source, "target": place, "bytes": info.size if info else None})
    return copied


def download(files: Files, sources: Sequence[str], target: str) -> Copied:
    """Copy things in the sandbox to the local `target`."""
    is_inside = target.endswith("/") or Path(target).is_dir()
    if len(sources) > 1 and not is_inside and target != "-":
        raise CommandError(f"{target} is no directory; make it first, or write {target}/", exit_code=MISUSED)
    copied: Copied = []
    for source in sources:
        if target == "-":
            with files.stream(source) as pieces:
                for piece in pieces:
                    write_all(1, piece)
            continue
        name = posixpath.basename(source.rstrip("/")) or "root"
        place = Path(target) / name if is_inside else Path(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        if _is_directory(files, source):
            with files.archive(source) as pieces:
                unpack(pieces, place)
            copied.append({"source": source, "target": str(place), "is_directory": True})
        else:
            copied.append({"source": source, "target": str(place), "bytes": _download_file(files, source, place)})
    return copied


def _download_file(files: Files, source: str, place: Path) -> int:
    """Write beside the target and rename, so that a broken copy leaves the old file as it was."""
    if place.exists() and not place.is_file():  # /dev/null, a pipe
        return files.download(source, place)
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        size = files.download(source, partial)
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)
    return size


def _is_directory(files: Files, path: str) -> bool:
    """Whether the path is a directory or a link to one; a link is resolved by listing it."""
    try:
        info = files.stat(path)
        if info.type == "symlink":
            files.list(path, limit=1)
            return True
    except NotFoundError:
        return False
    except Exception as error:
        if getattr(error, "code", None) == "failed_precondition":  # a link to a file
            return False
        raise
    return info.type == "directory"

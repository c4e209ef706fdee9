"""Small files that only root reads, and trees that are removed."""

import os
import shutil
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a small private file whole or not at all."""
    temporary = path.with_suffix(".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(text.encode())
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)
    temporary.replace(path)


def remove_tree(path: Path) -> None:
    """Remove a file or a directory with all that it holds; succeeds if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

"""The data directory: what it holds and to which instance it belongs (DESIGN §2)."""

import contextlib
import os
import secrets
from pathlib import Path

from space.core.errors import Unavailable

SUBDIRECTORIES = ("journals", "objects", "templates", "run", "log", "node")


def prepare(data_dir: Path) -> str:
    """Make the directory and its parts (0700, idempotent); return the instance's id, made on the first call.

    Raises:
        Unavailable: it cannot be made or written; the message says what to do.
    """
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in SUBDIRECTORIES:
            (data_dir / name).mkdir(mode=0o700, exist_ok=True)
        return _instance_id(data_dir / "instance-id")
    except OSError as error:
        raise Unavailable(
            f"cannot use the data directory {data_dir}: {error.strerror}; run as root, or set SPACE_DATA_DIR"
        ) from error


def _instance_id(path: Path) -> str:
    """Read the id, or write a new one that appears whole."""
    if not path.exists():
        temporary = path.with_name(f".instance-id.{os.getpid()}")
        with temporary.open("w") as file:
            file.write(secrets.token_hex(8) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was quicker: its id counts
            path.hardlink_to(temporary)
        temporary.unlink()
    return path.read_text().strip()

"""A full disk of the host, as callers see it."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from space.core.errors import InsufficientStorage

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def full_disk_refuses(what: str) -> Iterator[None]:
    """Turn "no space left" in the body into `InsufficientStorage`; `what` could not be written."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise InsufficientStorage(f"the node's disk has no room for {what}; free some space on it") from error

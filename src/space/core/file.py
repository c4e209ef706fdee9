"""Files inside a sandbox, as callers see them."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class FileType(StrEnum):
    """What a path names."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """One path, not followed if it is a link.  `etag` changes whenever content may have changed."""

    path: str  #: absolute, in the guest
    type: FileType
    size: int
    mode: int  #: permission bits
    user: str
    group: str
    modified_at: datetime
    target: str | None  #: of a symlink
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEvent:
    """A change below a watched path: `created`, `modified`, `removed`, `moved` or `overflow` (list again)."""

    kind: str
    path: str
    at: datetime

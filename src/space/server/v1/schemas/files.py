"""Files on the wire."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator

from space.server.schemas import Asked, Query, Shown
from space.server.v1.schemas.shared import GuestPath, Mode, UserName, without_parents


class PathQuery(Query):
    """Names one path."""

    path: GuestPath

    @field_validator("path")
    @classmethod
    def _stays_below(cls, value: str) -> str:
        return without_parents(value)


class WriteQuery(PathQuery):
    """Names a file to write, and how."""

    mode: Mode | None = None
    user: UserName | None = None

    @property
    def permissions(self) -> int | None:
        return int(self.mode, 8) if self.mode is not None else None


class RemoveQuery(PathQuery):
    """Names what to remove."""

    recursive: Annotated[bool, Field(description="A directory with all that is in it.")] = False


class ListQuery(PathQuery):
    """Names a directory to list."""

    depth: Annotated[int, Field(ge=1, le=32, description="Levels below the directory.")] = 1
    limit: Annotated[int, Field(ge=1, le=5_000, description="Entries at most.")] = 1000


class WatchQuery(PathQuery):
    """Names a directory to watch."""

    recursive: bool = False


class ArchiveQuery(PathQuery):
    """Names a directory to pack or unpack."""

    user: UserName | None = None


class Move(Asked):
    """Renames a file or directory."""

    source: GuestPath
    target: GuestPath

    @field_validator("source", "target")
    @classmethod
    def _stays_below(cls, value: str) -> str:
        return without_parents(value)


class MakeDirectory(Asked):
    """Makes a directory and its parents."""

    path: GuestPath
    mode: Mode | None = None
    user: UserName | None = None

    @field_validator("path")
    @classmethod
    def _stays_below(cls, value: str) -> str:
        return without_parents(value)

    @property
    def permissions(self) -> int | None:
        return int(self.mode, 8) if self.mode is not None else None


class File(Shown):
    """One path, not followed if it is a link."""

    path: str
    type: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: str = Field(description="Permission bits in octal.")
    user: str
    group: str
    modified_at: datetime
    target: str | None = Field(description="Where a symlink points.")
    etag: str = Field(description="Changes whenever the content may have changed.")


class FileList(Shown):
    """Entries below a directory, sorted by path."""

    items: list[File]
    truncated: bool = Field(description="Whether there are more than `limit`.")


class Unpacked(Shown):
    """What an archive held."""

    files: int
    bytes: int

    @classmethod
    def shown(cls, counts: Any) -> Self:
        return cls(files=int(counts["files"]), bytes=int(counts["bytes"]))

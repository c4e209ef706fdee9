"""One request from nothing to output."""

import base64
import binascii
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from space.server.schemas import Asked, Shown
from space.server.v1.schemas.commands import Exec, ExecResult
from space.server.v1.schemas.sandboxes import SandboxCreate
from space.server.v1.schemas.shared import GuestPath, Mode, without_parents


class FileIn(Asked):
    """A file that the program finds."""

    path: GuestPath
    content: str
    encoding: Literal["utf-8", "base64"] = "utf-8"
    mode: Mode | None = None

    @field_validator("path")
    @classmethod
    def _stays_below(cls, value: str) -> str:
        return without_parents(value)

    @model_validator(mode="after")
    def _is_encoded(self) -> "FileIn":
        try:
            _ = self.data
        except (binascii.Error, ValueError):
            raise ValueError("content is not what its encoding says") from None
        return self

    @property
    def data(self) -> bytes:
        if self.encoding == "base64":
            return base64.b64decode(self.content, validate=True)
        return self.content.encode()


class Run(Asked):
    """A sandbox, a command in it, and the files before and after."""

    sandbox: SandboxCreate
    command: Exec
    files_in: Annotated[list[FileIn], Field(max_length=64)] = Field(default=[])
    files_out: Annotated[list[GuestPath], Field(max_length=64, description="Read after the program has ended.")] = (
        Field(default=[])
    )

    @field_validator("files_out")
    @classmethod
    def _stay_below(cls, value: list[str]) -> list[str]:
        return [without_parents(path) for path in value]


class FileOut(Shown):
    """A file that the program left, or why it cannot be shown."""

    path: str
    content: str | None = Field(description="In base64.")
    size: int | None
    error: dict[str, object] | None


class RunResult(ExecResult):
    """How the program ended, what it wrote, and the files it left.  The sandbox is deleted."""

    sandbox_id: str
    files: list[FileOut]

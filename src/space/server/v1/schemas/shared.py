"""Fields and parameters that several aggregates use."""

from typing import Annotated

from pydantic import Field, field_validator

from space.server.binding import id_path
from space.server.schemas import NO_NUL, Query

SANDBOX = "sbx06d1q8vg3rq5n7h2c4f9k0e8s0"
OPERATION = "ops06d1q8vg3rq5n7h2c4f9k0e8s4"
SESSION = "ses06d1q8vg3rq5n7h2c4f9k0e8s8"
PROCESS = "prc06d1q8vg3rq5n7h2c4f9k0e8sc"
PROJECT = "prj06d1q8vg3rq5n7h2c4f9k0e8sg"
TOKEN = "tok06d1q8vg3rq5n7h2c4f9k0e8sk"
USER = "usr06d1q8vg3rq5n7h2c4f9k0e8so"
NODE = "nod06d1q8vg3rq5n7h2c4f9k0e8ss"
AT = "2026-12-01T09:30:00.000000Z"
LATER = "2026-12-01T09:30:01.250000Z"

SandboxIdPath = Annotated[str, *id_path("sbx", "The sandbox's id.", SANDBOX)]
OperationIdPath = Annotated[str, *id_path("ops", "The operation's id.", OPERATION)]
ProcessIdPath = Annotated[str, *id_path("prc", "The process's id.", PROCESS)]
SessionIdPath = Annotated[str, *id_path("ses", "The session's id.", SESSION)]
ProjectIdPath = Annotated[str, *id_path("prj", "The project's id.", PROJECT)]
TokenIdPath = Annotated[str, *id_path("tok", "The token's id.", TOKEN)]
UserIdPath = Annotated[str, *id_path("usr", "The user's id.", USER)]

Cursor = Annotated[
    str | None, Field(max_length=512, pattern=r"^[!-~]+$", description="`next_cursor` of the last page.")
]
Limit = Annotated[int, Field(ge=1, le=1000, description="Entries at most.")]

MAX_ENV = 256
MAX_METADATA = 64
EnvName = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00=]+$")]
EnvValue = Annotated[str, Field(max_length=131_000, pattern=NO_NUL)]
Env = Annotated[
    dict[EnvName, EnvValue],
    Field(max_length=MAX_ENV, description="At most 256 variables; values at most 131,000 characters."),
]
MetadataKey = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00]+$")]
MetadataValue = Annotated[str, Field(max_length=1024, pattern=NO_NUL)]
Metadata = Annotated[
    dict[MetadataKey, MetadataValue], Field(max_length=MAX_METADATA, description="At most 64 entries.")
]

GuestPath = Annotated[
    str,
    Field(
        min_length=1,
        max_length=4096,
        pattern=r"^/[^\x00]*$",
        description="An absolute path in the sandbox, without `..`.",
        examples=["/home/user/data.csv"],
    ),
]
UserName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
Mode = Annotated[str, Field(pattern=r"^0?[0-7]{3,4}$", description="Permission bits in octal.", examples=["0644"])]


def without_parents(path: str) -> str:
    """Refuse `..`: a path that is checked must be the path that is opened."""
    if ".." in path.split("/"):
        raise ValueError("the path may not hold `..`")
    if len(path.encode()) > 4096:
        raise ValueError("the path is longer than 4096 bytes")
    return path


class Fields(Query):
    """Selects fields of an answer."""

    fields: Annotated[
        str | None,
        Field(
            max_length=1024,
            pattern=r"^[a-z_]+(,[a-z_]+)*$",
            description="Names of the fields to answer with, divided by commas; default: all.",
            examples=["id,state"],
        ),
    ] = None

    @field_validator("fields")
    @classmethod
    def _are_known(cls, value: str | None) -> str | None:
        unknown = [name for name in (value or "").split(",") if name and name not in cls.known_fields()]
        if unknown:
            raise ValueError(f"there is no field {unknown[0][:64]}")
        return value

    @classmethod
    def known_fields(cls) -> frozenset[str]:
        """Return the names that may be selected."""
        raise NotImplementedError

    @property
    def selected(self) -> frozenset[str] | None:
        return frozenset(self.fields.split(",")) if self.fields else None

"""Fields and parameters that several aggregates use."""

from typing import Annotated

from pydantic import BaseModel, Field

from space.server.binding import id_path
from space.server.schemas import NO_NUL, mapping

SANDBOX = "sbx06d1q8vg3rq5n7h2c4f9k0e8s0"
OPERATION = "ops06d1q8vg3rq5n7h2c4f9k0e8s4"
SESSION = "ses06d1q8vg3rq5n7h2c4f9k0e8s8"
PROCESS = "prc06d1q8vg3rq5n7h2c4f9k0e8sc"
PROJECT = "prj06d1q8vg3rq5n7h2c4f9k0e8sg"
TOKEN = "tok06d1q8vg3rq5n7h2c4f9k0e8sk"
USER = "usr06d1q8vg3rq5n7h2c4f9k0e8so"
NODE = "nod06d1q8vg3rq5n7h2c4f9k0e8ss"
SNAPSHOT = "snp06d1q8vg3rq5n7h2c4f9k0e900"
AT = "2026-12-01T09:30:00.000000Z"
LATER = "2026-12-01T09:30:01.250000Z"

SandboxIdPath = Annotated[str, *id_path("sbx", "The sandbox's id.", SANDBOX)]
OperationIdPath = Annotated[str, *id_path("ops", "The operation's id.", OPERATION)]
SnapshotIdPath = Annotated[str, *id_path("snp", "The snapshot's id.", SNAPSHOT)]
ProcessIdPath = Annotated[str, *id_path("prc", "The process's id.", PROCESS)]
SessionIdPath = Annotated[str, *id_path("ses", "The session's id.", SESSION)]
ProjectIdPath = Annotated[str, *id_path("prj", "The project's id.", PROJECT)]
TokenIdPath = Annotated[str, *id_path("tok", "The token's id.", TOKEN)]
UserIdPath = Annotated[str, *id_path("usr", "The user's id.", USER)]

Cursor = Annotated[
    str | None, Field(max_length=512, pattern=r"^[!-~]+$", description="`next_cursor` of the last page.")
]
Limit = Annotated[int, Field(ge=1, le=1000, description="Entries at most.")]

MAX_PATH_BYTES = 4095
MAX_ENV = 256
MAX_METADATA = 64
ENV_NAME = r"^[^\x00=]+$"
SOME_TEXT = r"^[^\x00]+$"
EnvName = Annotated[str, Field(min_length=1, max_length=256, pattern=ENV_NAME)]
EnvValue = Annotated[str, Field(max_length=131_000, pattern=NO_NUL)]
Env = Annotated[
    dict[EnvName, EnvValue],
    Field(max_length=MAX_ENV),
    mapping(
        {"minLength": 1, "maxLength": 256, "pattern": ENV_NAME},
        {"maxLength": 131_000, "pattern": NO_NUL},
        maxProperties=MAX_ENV,
        description="At most 256 variables and 262,144 bytes.",
    ),
]
MetadataKey = Annotated[str, Field(min_length=1, max_length=128, pattern=SOME_TEXT)]
MetadataValue = Annotated[str, Field(max_length=1024, pattern=NO_NUL)]
Metadata = Annotated[
    dict[MetadataKey, MetadataValue],
    Field(max_length=MAX_METADATA),
    mapping(
        {"minLength": 1, "maxLength": 128, "pattern": SOME_TEXT},
        {"maxLength": 1024, "pattern": NO_NUL},
        maxProperties=MAX_METADATA,
        description="At most 64 entries, for callers' own use and for finding sandboxes.",
    ),
]

GuestPath = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_PATH_BYTES,
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
    if len(path.encode()) > MAX_PATH_BYTES:
        raise ValueError(f"the path is longer than {MAX_PATH_BYTES} bytes")
    return path


def selection_of(model: type[BaseModel]) -> str:
    """Return the pattern of a list of some of the model's fields."""
    names = "|".join(model.model_fields)
    return f"^({names})(,({names}))*$"

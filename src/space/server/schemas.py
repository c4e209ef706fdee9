"""Forms that every part of the API shares."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

Code = Literal[
    "invalid_request",
    "unauthorized",
    "forbidden",
    "not_found",
    "conflict",
    "idempotency_conflict",
    "failed_precondition",
    "rate_limited",
    "capacity_unavailable",
    "service_unavailable",
    "internal",
    "unsupported",
    "payload_too_large",
    "insufficient_storage",
    "deadline_exceeded",
]

NO_NUL = r"^[^\x00]*$"
Text = Annotated[str, Field(pattern=NO_NUL)]
"""A string without NUL bytes: those end a string in every system call that it could reach."""


class Asked(BaseModel):
    """A request body: strict types, and unknown fields are an error that names them."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Query(BaseModel):
    """Query parameters: strings turned into their types; unknown ones are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def from_pairs(cls, pairs: dict[str, str]) -> Self:
        """Validate the parameters of a query string, each of which is given once."""
        return cls.model_validate(pairs)


class Shown(BaseModel):
    """An answer; fields may be added to it, so clients ignore what they do not know."""

    model_config = ConfigDict(extra="allow", frozen=True)


class ErrorBody(Shown):
    """What went wrong."""

    code: Code = Field(description="Permanent; what a program looks at.")
    message: str = Field(description="What is wrong and what to do, for people.")
    request_id: str
    details: dict[str, Any] = Field(description="Typed per code: `field`, `limit`, `operation_id`, `quota` …")
    retryable: bool = Field(description="Whether the same request may succeed later.")


class ErrorEnvelope(Shown):
    """The one form of every answer that is not a success."""

    error: ErrorBody


class Health(Shown):
    """How the server is."""

    status: Literal["ok", "ready"]


class OpenApi(Shown):
    """An OpenAPI 3.1 document."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]

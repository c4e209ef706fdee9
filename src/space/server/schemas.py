"""Forms that every part of the API shares."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

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


def _whole(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() else value


def _instant(value: Any) -> Any:
    if not isinstance(value, str) or not _INSTANT.match(value):
        raise ValueError("a time as RFC 3339 has it, with its offset, e.g. 2026-12-01T09:30:00Z")
    return value


def _in_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("a time that lies, in UTC, in the years 1 to 9999") from None


_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d")

WHOLE = BeforeValidator(_whole)
"""Marks an integer, behind its bounds: `1.0` is one, as JSON Schema has it."""

Instant = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_instant), AfterValidator(_in_utc)]
"""A time with its offset; bare numbers are no times."""


class Asked(BaseModel):
    """A request body: strict types, and unknown fields are an error that names them."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def exactly_one(*names: str) -> ConfigDict:
    """Configure a model whose validator wants exactly one of these fields, so that its schema says so."""
    return ConfigDict(json_schema_extra={"oneOf": [{"required": [name]} for name in names]})


def at_least_one(*names: str) -> ConfigDict:
    """Configure a model whose validator wants one of these fields or more, so that its schema says so."""
    return ConfigDict(json_schema_extra={"anyOf": [{"required": [name]} for name in names]})


def mapping(key: dict[str, Any], value: dict[str, Any], **limits: Any) -> WithJsonSchema:
    """Describe an object by its property names; pydantic's `patternProperties` would let all other names pass."""
    return WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"type": "string", **key},
            "additionalProperties": {"type": "string", **value},
            **limits,
        }
    )


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

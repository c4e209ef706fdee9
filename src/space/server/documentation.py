"""What the OpenAPI document says of an endpoint beyond its signature: answers, failures, and an example of each.

Examples of failures are error objects, rendered by the same function that renders real ones, so they cannot drift.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from space.core.errors import (
    DeadlineExceeded,
    IdempotencyConflict,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    SpaceError,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
)
from space.server.errors import envelope, error_headers, status_of
from space.server.schemas import ErrorEnvelope

if TYPE_CHECKING:
    from space.server.endpoint import Rule

REQUEST_ID_EXAMPLE = "req-01jd3v8p7n"

DESCRIPTIONS: Mapping[int, str] = {
    400: "The request can never be accepted; `details.field` names what is wrong.",
    401: "No valid token.",
    403: "A valid token that may not do this.",
    404: "It does not exist, or belongs to another project.",
    405: "The path exists, the method does not.",
    406: "No form of the answer is one that `Accept` allows.",
    409: "What exists says no.",
    413: "Over a fixed limit.",
    415: "The body is in a form that this does not read.",
    416: "The range lies beyond the end of the file.",
    422: "This installation or runtime lacks the capability; `details.feature` names it.",
    429: "Over a quota or a rate; wait as `Retry-After` says.",
    500: "An internal error; the server's log has its cause under the request id.",
    503: "A part of SPACE cannot answer at the moment; wait as `Retry-After` says.",
    504: "It took longer than allowed.",
    507: "A disk is full.",
}

HEADERS: Mapping[bytes, str] = {
    b"retry-after": "Seconds to wait before trying again.",
    b"www-authenticate": "The scheme to use.",
    b"content-range": "The size of the file.",
    b"allow": "The methods of this path.",
}

KEY_PARAMETER: Mapping[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Makes a retry harmless: the same key and body within 24 hours answer what the first call answered.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    "examples": {"key": {"value": "4b1c0d0e-create-42"}},
}


def header_parameter(name: str, description: str, example: str, **schema: Any) -> dict[str, Any]:
    """Describe an optional request header."""
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": {"type": "string"} | schema,
        "examples": {"value": {"value": example}},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One successful answer."""

    description: str
    model: type[BaseModel] | None = None
    examples: Mapping[str, Any] = field(default_factory=dict)
    media_type: str = "application/json"
    also: Mapping[str, str] = field(default_factory=dict)  #: other media type → example of it
    headers: Mapping[str, str] = field(default_factory=dict)  #: name → what it says


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """An endpoint's words."""

    id: str  #: operationId, and the action in the audit log: permanent
    summary: str
    tag: str
    answers: Mapping[int, Answer]
    description: str | None = None
    requests: Mapping[str, Any] = field(default_factory=dict)  #: name → example of the body
    raises: Sequence[SpaceError] = ()  #: examples of failures beyond those that every endpoint has
    parameters: Sequence[Mapping[str, Any]] = ()
    media_type: str | None = None  #: of a body that is a stream of bytes
    is_data_plane: bool = False  #: answered by the data plane's server
    is_published: bool = False  #: a fact of SPACE 0.8.0: part of openapi-m1.json

    def arguments(self, method: str, rule: "Rule", *, has_body: bool, path: str) -> dict[str, Any]:
        """Return what FastAPI's route takes."""
        failures = [*common_failures(rule, has_body=has_body, method=method, path=path), *self.raises]
        responses: dict[int | str, dict[str, Any]] = {code: _answer(answer) for code, answer in self.answers.items()}
        responses |= failure_responses(failures)
        return {
            "operation_id": self.id,
            "summary": self.summary,
            "description": self.description,
            "tags": [self.tag],
            "status_code": min(self.answers),
            "response_class": Response,
            "responses": responses,
            "openapi_extra": self._extra(method, rule),
        }

    def _extra(self, method: str, rule: "Rule") -> dict[str, Any]:
        extra: dict[str, Any] = {"security": _security(rule)}
        if self.is_data_plane:
            extra["servers"] = [{"url": "http://127.0.0.1:8471", "description": "The data plane: see `events_url`."}]
        parameters = [dict(parameter) for parameter in self.parameters]
        if method == "POST" and rule.takes_key and not rule.is_public:
            parameters.append(dict(KEY_PARAMETER))
        if parameters:
            extra["parameters"] = parameters
        if self.media_type is not None:
            schema = {"type": "string", "format": "binary"}
            extra["requestBody"] = {"required": False, "content": {self.media_type: {"schema": schema}}}
        elif self.requests:
            examples = {name: {"value": value} for name, value in self.requests.items()}
            extra["requestBody"] = {"content": {"application/json": {"examples": examples}}}
        return extra


def _security(rule: "Rule") -> list[dict[str, list[str]]]:
    if rule.is_public:
        return [{rule.scheme: []}] if rule.scheme is not None else []
    return [{"bearer": [str(rule.right)] if rule.right is not None else []}]


def _answer(answer: Answer) -> dict[str, Any]:
    response: dict[str, Any] = {"description": answer.description}
    if answer.model is not None:
        response["model"] = answer.model
    if answer.model is not None or answer.examples or answer.media_type != "application/json":
        content: dict[str, Any] = {}
        if answer.examples:
            content["examples"] = {name: {"value": value} for name, value in answer.examples.items()}
        if answer.model is None:
            content["schema"] = {"type": "string"}
        response["content"] = {answer.media_type: content}
    for media_type, example in answer.also.items():
        response["content"][media_type] = {"schema": {"type": "string"}, "examples": {"some": {"value": example}}}
    if answer.headers:
        response["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in answer.headers.items()
        }
    return response


def common_failures(rule: "Rule", *, has_body: bool, method: str, path: str) -> list[SpaceError]:
    """List what can go wrong with any request to such an endpoint."""
    failures: list[SpaceError] = [InvalidRequest("colour: extra inputs are not permitted", field="colour")]
    if not rule.is_public:
        failures.append(Unauthenticated("the token is unknown, expired or revoked"))
    if rule.right is not None:
        missing = str(rule.right)
        failures.append(PermissionDenied(f"this needs the scope {missing}; ask for a token that has it", scope=missing))
    if "{sandbox_id}" in path:
        failures.append(NotFound("there is no such sandbox"))
    if has_body:
        failures.append(PayloadTooLarge("the body is larger than 4194304 bytes", limit=4_194_304, field="body"))
        failures.append(UnsupportedMediaType("send the body as application/json", field="Content-Type"))
        failures.append(DeadlineExceeded("the body did not arrive within 30 seconds", field="body"))
    if method == "POST" and rule.takes_key and not rule.is_public:
        failures.append(IdempotencyConflict("this idempotency key was used with another body", field="Idempotency-Key"))
    failures.append(LimitExceeded("too many requests in flight for this client", quota="concurrency", limit=32))
    failures.append(SpaceError("internal"))
    failures.append(Unavailable("the database is busy; try again"))
    return failures


def failure_responses(failures: Sequence[SpaceError]) -> dict[int | str, dict[str, Any]]:
    """Group failures by status, each a named example of the one envelope."""
    responses: dict[int | str, dict[str, Any]] = {}
    for error in failures:
        status = status_of(error)
        response = responses.setdefault(
            status,
            {
                "description": DESCRIPTIONS[status],
                "model": ErrorEnvelope,
                "content": {"application/json": {"examples": {}}},
            },
        )
        examples = response["content"]["application/json"]["examples"]
        examples[_example_name(error, examples)] = {"value": orjson.loads(envelope(error, REQUEST_ID_EXAMPLE))}
        for name, _ in error_headers(error):
            text = HEADERS[name]
            shown = name.decode().title()
            response.setdefault("headers", {})[shown] = {"description": text, "schema": {"type": "string"}}
    return responses


def _example_name(error: SpaceError, taken: Mapping[str, Any]) -> str:
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()
    for hint in ("field", "feature", "quota", "current_state"):
        if hint in error.details:
            name += "_" + re.sub(r"[^a-z0-9]+", "_", str(error.details[hint]).lower()).strip("_")
            break
    number = 2
    unique = name
    while unique in taken:
        unique = f"{name}_{number}"
        number += 1
    return unique

"""From a request to the arguments of an endpoint, by its signature.

FastAPI reads the same signatures for the OpenAPI document.  The values are bound here because of what the contract
asks: strict types as JSON has them (FastAPI validates parsed Python values, where strict refuses an enum's string),
errors that name the field, a body that is read only after the caller was let in and never beyond its limit.  It also
takes a third of the time.
"""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, get_args, get_origin
from urllib.parse import parse_qsl

from fastapi.params import Path, Query
from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from space.core.errors import DeadlineExceeded, InvalidRequest, NotFound, PayloadTooLarge, UnsupportedMediaType
from space.server.request import ApiRequest
from space.server.schemas import Query as QueryModel

Handler = Callable[..., Awaitable[Response]]

MAX_QUERY_BYTES = 16_384
BODY_SECONDS = 30.0  #: for a JSON body to arrive; files and stdin are streams and take as long as they take
MAX_SHOWN = 200  #: characters of a validation message that quotes the caller


class Binding:
    """How one endpoint's arguments are made."""

    def __init__(self, handler: Handler, path: str) -> None:
        self._path_parameters = [segment[1:-1] for segment in path.split("/") if segment.startswith("{")]
        self._checks: dict[str, IdPrefix | Matches] = {}
        self._query: tuple[str, type[QueryModel]] | None = None
        self._empty_query: QueryModel | None = None
        self._body: tuple[str, TypeAdapter[Any]] | None = None
        self.body_is_optional = False
        for name, parameter in inspect.signature(handler, eval_str=True).parameters.items():
            self._plan(name, parameter)

    @property
    def has_body(self) -> bool:
        return self._body is not None

    @property
    def query_fields(self) -> frozenset[str]:
        return frozenset() if self._query is None else frozenset(self._query[1].model_fields)

    def _plan(self, name: str, parameter: inspect.Parameter) -> None:
        annotation = parameter.annotation
        if inspect.isclass(annotation) and issubclass(annotation, ApiRequest):
            return
        marks = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
        if name in self._path_parameters:
            self._checks[name] = next(mark for mark in marks if isinstance(mark, IdPrefix | Matches))
        elif any(isinstance(mark, Query) for mark in marks):
            model = get_args(annotation)[0]
            self._query = (name, model)
            self._empty_query = _without_required(model)
        else:
            self._body = (name, TypeAdapter(annotation))
            self.body_is_optional = parameter.default is not inspect.Parameter.empty

    def path(self, values: Sequence[str]) -> dict[str, Any]:
        """Check the ids in the path; one of the wrong form names nothing."""
        arguments: dict[str, Any] = {}
        for name, value in zip(self._path_parameters, values, strict=True):
            self._checks[name].check(name, value)
            arguments[name] = value
        return arguments

    def query(self, raw: bytes, arguments: dict[str, Any]) -> None:
        """Parse the query string into its model; one that nobody declared is refused."""
        if self._query is None:
            if raw:
                _refuse_all(raw)
            return
        name, model = self._query
        if not raw and self._empty_query is not None:
            arguments[name] = self._empty_query
            return
        try:
            arguments[name] = model.from_pairs(_pairs(raw))
        except ValidationError as error:
            raise invalid(error, "query") from None

    def body(self, raw: bytes, content_type: str | None, arguments: dict[str, Any]) -> None:
        """Parse a JSON body into its model."""
        if self._body is None:
            return
        name, adapter = self._body
        if not raw and self.body_is_optional:
            return
        if content_type is not None and not _is_json(content_type):
            raise UnsupportedMediaType("send the body as application/json", field="Content-Type")
        if not raw:
            raise InvalidRequest("this needs a JSON body", field="body")
        try:
            arguments[name] = adapter.validate_json(raw)
        except ValidationError as error:
            raise invalid(error, "body") from None


def id_form(prefix: str) -> str:
    """Return the pattern of ids of a kind."""
    return f"^{prefix}[0-9a-v]{{25}}[048cgkos]$"


class IdPrefix:
    """Marks a path parameter as an id of one kind."""

    __slots__ = ("_form", "prefix")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._form = re.compile(id_form(prefix))  # what `core.ids.is_id` says, at a twentieth of its time

    def check(self, name: str, value: str) -> None:
        if not self._form.fullmatch(value):
            noun = name.removesuffix("_id")
            raise NotFound(f"there is no such {noun}: its id is {self.prefix} and 26 characters 0-9a-v")


class Matches:
    """Marks a path parameter as something that has this form."""

    __slots__ = ("pattern",)

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern

    def check(self, name: str, value: str) -> None:
        if not self.pattern.fullmatch(value):
            raise NotFound(f"there is no such {name}")


def id_path(prefix: str, what: str, example: str) -> tuple[Path, IdPrefix]:
    """Return the marks of a path parameter that is an id: for FastAPI's document, and for the binding."""
    return Path(description=what, pattern=id_form(prefix), openapi_examples={"id": {"value": example}}), IdPrefix(
        prefix
    )


async def read_body(request: ApiRequest, limit: int) -> bytes:
    """Read the whole body; stops at `limit` bytes.

    Raises:
        PayloadTooLarge: it is longer; at most one piece beyond the limit was read.
        DeadlineExceeded: the client takes its time, and our memory with it.
    """
    declared = request.header(b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read_pieces(request, limit)
    except TimeoutError:
        raise DeadlineExceeded(f"the body did not arrive within {BODY_SECONDS:g} seconds", field="body") from None


async def _read_pieces(request: ApiRequest, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        if piece:
            pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body is larger than {limit} bytes", limit=limit, field="body")


def invalid(error: ValidationError, where: str) -> InvalidRequest:
    """Say what is wrong with the first field, and name the others; values are never repeated."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    fields = [_field(problem["loc"], where) for problem in problems[:20]]
    message = _message(problems[0]["msg"])
    return InvalidRequest(
        f"{fields[0]}: {message[:1].lower()}{message[1:]}",
        field=fields[0],
        problems=[
            {"field": field, "message": _message(problem["msg"])}
            for field, problem in zip(fields, problems, strict=False)
        ],
    )


def _message(text: str) -> str:
    return text.removeprefix("Value error, ")[:MAX_SHOWN]


def _field(location: Sequence[str | int], where: str) -> str:
    return ".".join(str(part)[:128] for part in location) or where


def _pairs(raw: bytes) -> dict[str, str]:
    if len(raw) > MAX_QUERY_BYTES:
        raise InvalidRequest("the query string is too long", field="query", limit=MAX_QUERY_BYTES)
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:  # UnicodeDecodeError among them
        raise InvalidRequest("the query string is no URL-encoded UTF-8", field="query") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidRequest(f"{name[:128]} is given twice", field=name[:128])
        if "\0" in value or "\0" in name:
            raise InvalidRequest(f"{name[:128]!r} holds a NUL byte", field=name[:128])
        found[name] = value
    return found


def _refuse_all(raw: bytes) -> None:
    pairs = _pairs(raw)
    name = next(iter(pairs), "query")[:128]
    raise InvalidRequest(f"{name}: this takes no query parameters", field=name)


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _without_required(model: type[QueryModel]) -> QueryModel | None:
    if any(field.is_required() for field in model.model_fields.values()):
        return None
    return model.from_pairs({})

"""The OpenAPI 3.1 documents, generated from the endpoints.

`openapi.json` holds everything; `openapi-m1.json` what SPACE 0.8.0 published.  Both are committed; `scripts/openapi
--check` fails when they differ from the code.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi.openapi.utils import get_openapi

import space
from space.server.endpoint import Endpoint

DESCRIPTION = """\
SPACE runs untrusted code in isolated sandboxes, driven over HTTP and server-sent events.

Times are RFC 3339 in UTC, sizes in MiB, durations in seconds. Unknown request fields are an error that names them.
Every failure has the one form `ErrorEnvelope`. Retry what is `retryable`, after `Retry-After` or with growing pauses.
All paths under `/v1` are also served under `/api/v1`.
"""

TAGS = {
    "sandboxes": "Computers that last: a sandbox is a row, a machine is what runs it.",
    "snapshots": "Moments of sandboxes that last; new sandboxes start from them.",
    "operations": "Every change is a durable operation. Succeeded is a promise.",
    "commands": "Programs in a sandbox, as streams that lose nothing, or in one call.",
    "processes": "The processes of commands.",
    "files": "Bytes in and out of a sandbox.",
    "templates": "What sandboxes are made from.",
    "projects": "Owners of sandboxes, with quotas.",
    "nodes": "Hosts of sandboxes.",
    "pools": "Machines that are started ahead, so that a create takes milliseconds.",
    "audit": "Who changed what, and who was refused.",
    "not yet supported": "Named by the contract; answered with `unsupported` until they are.",
    "sessions": "Logins of people.",
    "tokens": "Credentials of programs.",
    "users": "People.",
    "service": "The server itself.",
}

SECURITY_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token from `/auth/v1/tokens`, or of a login. The roles listed are the scopes it needs.",
    },
    "sessionToken": {
        "type": "http",
        "scheme": "bearer",
        "description": "The `session.token` of a command: for that session only, five minutes to connect.",
    },
}

REQUEST_ID_HEADER = {
    "description": "The request's id: the caller's own `X-Request-Id` if it sent one.",
    "schema": {"type": "string"},
}


@dataclass(frozen=True, slots=True)
class Documents:
    """Both documents as JSON."""

    full: bytes
    published: bytes


def build_documents(endpoints: Sequence[Endpoint]) -> Documents:
    """Render both documents."""
    full = document(endpoints)
    return Documents(orjson.dumps(full), orjson.dumps(published_part(full, endpoints)))


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Describe the endpoints."""
    described = get_openapi(
        title="SPACE",
        version=space.__version__,
        description=DESCRIPTION,
        routes=endpoints,
        tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        separate_input_output_schemas=False,
    )
    for operation in _operations(described):
        if "HTTPValidationError" in str(operation["responses"].get("422", {})):
            del operation["responses"]["422"]  # FastAPI's own; ours answer 400
        operation["responses"] = dict(sorted(operation["responses"].items()))
        for response in operation["responses"].values():
            response.setdefault("headers", {})["X-Request-Id"] = {"$ref": "#/components/headers/X-Request-Id"}
    components = described.setdefault("components", {})
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    components["schemas"] = dict(sorted(components["schemas"].items()))
    components["securitySchemes"] = SECURITY_SCHEMES
    components["headers"] = {"X-Request-Id": REQUEST_ID_HEADER}
    whole: dict[str, Any] = _with_whole_bounds(described)
    return whole


def _with_whole_bounds(value: Any) -> Any:
    """Write bounds of integers as integers; FastAPI's models make floats of them."""
    if isinstance(value, dict):
        return {key: _with_whole_bounds(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_whole_bounds(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _operations(described: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for item in described["paths"].values():
        yield from item.values()


def published_part(full: dict[str, Any], endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Cut out what SPACE 0.8.0 published, with the schemas that it uses."""
    published = {endpoint.document.id for endpoint in endpoints if endpoint.document.is_published}
    part = copy.deepcopy(full)
    part["info"]["title"] = "SPACE, the operations published with 0.8.0"
    part["paths"] = {
        path: kept
        for path, item in part["paths"].items()
        if (kept := {method: one for method, one in item.items() if one["operationId"] in published})
    }
    used_tags = {tag for operation in _operations(part) for tag in operation["tags"]}
    part["tags"] = [tag for tag in part["tags"] if tag["name"] in used_tags]
    schemas = part["components"]["schemas"]
    part["components"]["schemas"] = {name: schemas[name] for name in sorted(_reachable(part["paths"], schemas))}
    return part


def _reachable(root: Any, schemas: dict[str, Any]) -> set[str]:
    found: set[str] = set()
    waiting = [root]
    while waiting:
        for reference in _references(waiting.pop()):
            name = reference.rpartition("/")[2]
            if "/schemas/" in reference and name not in found:
                found.add(name)
                waiting.append(schemas[name])
    return found


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref" and isinstance(inner, str):
                yield inner
            else:
                yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)

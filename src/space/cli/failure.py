"""What a user sees when a command fails: one clear line, or one JSON object, and an exit code.

1: it failed; 2: it was asked for wrongly, or is not configured.  `space run` and `space sandbox exec`, whose exit codes
belong to the command that they run, use 125 for failures of SPACE itself, as `docker run` and `env` do.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

FAILED = 1
MISUSED = 2
NOT_RUN = 125


class CommandError(Exception):
    """A failure that the command found by itself; its message is for the user."""

    def __init__(self, message: str, *, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def tell(error: Exception, *, as_json: bool, exit_code: int | None = None) -> int:
    """Write the failure to stderr; return the exit code, which `exit_code` overrides."""
    body, code = describe(error)
    if as_json:
        print(json.dumps({"error": body}), file=sys.stderr)
    else:
        details = body.get("details") or {}
        hint = ", ".join(f"{key}={value}" for key, value in details.items() if isinstance(value, str | int | float))
        request = f"  (request {body['request_id']})" if body.get("request_id") else ""
        print(f"space: {body['message']}" + (f" [{hint}]" if hint else "") + request, file=sys.stderr)
    return code if exit_code is None else exit_code


def describe(error: Exception) -> tuple[dict[str, Any], int]:
    """Return the error as an envelope's inside, and its exit code."""
    from space.sdk.errors import NotConfiguredError, SpaceError

    if isinstance(error, SpaceError):
        body = {
            "code": error.code,
            "message": error.message,
            "request_id": error.request_id,
            "details": dict(error.details),
            "retryable": error.retryable,
        }
        return body, MISUSED if isinstance(error, NotConfiguredError) else FAILED
    if isinstance(error, CommandError):
        return {"code": "failed", "message": str(error)}, error.exit_code
    if isinstance(error, ModuleNotFoundError):
        text = f"this needs the server's packages ({error.name} is missing): pip install 'space-sandbox[server]'"
        return {"code": "not_installed", "message": text}, FAILED
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return {"code": "failed", "message": f"{where}{error.strerror or error}"}, FAILED
    text = f"unexpected {type(error).__name__}: {error}; SPACE_DEBUG=1 shows where"
    return {"code": "internal", "message": text}, FAILED


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether the command line asked for JSON, as far as that can be told without parsing it."""
    own = list(arguments[: arguments.index("--")]) if "--" in arguments else list(arguments)
    pairs = zip(own, [*own[1:], ""], strict=True)
    return "--json" in own or any(
        (name in ("-o", "--output") and value == "json") or name in ("-ojson", "--output=json") for name, value in pairs
    )

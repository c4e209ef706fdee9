"""What an agent's refusals mean to callers.  An agent chooses the code; the words are ours as far as possible."""

import os
from collections.abc import Mapping
from typing import Any

from space.core.errors import (
    Conflict,
    FailedPrecondition,
    GuestUnreachable,
    InsufficientStorage,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    SpaceError,
    Unsupported,
)

MAX_MESSAGE = 500
_CLASSES: Mapping[str, type[SpaceError]] = {
    "not_found": NotFound,
    "failed_precondition": FailedPrecondition,
    "invalid_request": InvalidRequest,
    "forbidden": PermissionDenied,
    "conflict": Conflict,
    "insufficient_storage": InsufficientStorage,
    "payload_too_large": PayloadTooLarge,
    "rate_limited": LimitExceeded,
    "unsupported": Unsupported,
}


class SpawnFailed(Exception):
    """A program could not be started: exit code 127 if there is none of that name, else 126."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message


def guest_error(body: Mapping[str, Any], subject: str) -> Exception:
    """Return the exception for an `ERROR` frame; `subject` says what it was about, e.g. the path."""
    code, number = body.get("code"), body.get("errno")
    said = printable(body.get("message"))
    if type(number) is int and 0 < number < 4096:
        said = os.strerror(number).lower()
    message = f"{subject}: {said}" if subject and said else said or subject or "the guest agent refused"
    if code == "spawn_failed":
        return SpawnFailed(127 if body.get("exit_code") == 127 else 126, message)
    found = _CLASSES.get(code) if isinstance(code, str) else None
    return found(message) if found is not None else GuestUnreachable(f"the guest agent failed: {message}")


def printable(text: object) -> str:
    """Return a guest's words without what could deceive a terminal or a log, and not too many."""
    if not isinstance(text, str):
        return ""
    return "".join(character if character.isprintable() else "?" for character in text[:MAX_MESSAGE])

"""Request bodies, made once for both sides of the SDK."""

from collections.abc import Mapping, Sequence
from typing import Any

from space.sdk.times import format_time

Argv = str | Sequence[str]


def command_body(
    command: Argv,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    timeout: float | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Make the body of a command: a string is a shell line, a sequence is argv.  What is None is left out."""
    body: dict[str, Any] = {"shell": command} if isinstance(command, str) else {"argv": list(command)}
    body |= {"env": dict(env) if env else None, "cwd": cwd, "user": user, "timeout_seconds": timeout, **others}
    return without_none(body)


def sandbox_body(
    template: str,
    *,
    runtime: str | None = None,
    vcpus: int | None = None,
    memory_mib: int | None = None,
    disk_mib: int | None = None,
    env: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Make the body of `POST /v1/sandboxes`.  What is None is left to the server's defaults."""
    resources = without_none({"vcpus": vcpus, "memory_mib": memory_mib, "disk_mib": disk_mib})
    return without_none(
        {
            "template": template,
            "runtime": runtime,
            "resources": resources or None,
            "env": dict(env) if env else None,
            "metadata": dict(metadata) if metadata else None,
            **others,
        }
    )


def list_query(metadata: Mapping[str, str] | None = None, **filters: Any) -> dict[str, Any]:
    """Make the query of a list; `metadata` becomes `metadata.KEY=VALUE`, times are written for the wire."""
    query = {name: format_time(value) if hasattr(value, "tzinfo") else value for name, value in filters.items()}
    query |= {f"metadata.{key}": value for key, value in (metadata or {}).items()}
    return without_none(query)


def without_none(body: Mapping[str, Any]) -> dict[str, Any]:
    """Drop what the caller left open."""
    return {key: value for key, value in body.items() if value is not None}

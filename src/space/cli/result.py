"""The result of a command as JSON: text where it is UTF-8, base64 where it is not."""

import base64
from typing import Any

from space.sdk import ExecResult


def result_object(result: ExecResult) -> dict[str, Any]:
    """Return `exit_code`, `signal`, `reason` and both streams; `…_base64` replaces a stream that is not UTF-8."""
    return {
        "exit_code": result.exit_code,
        "signal": result.signal,
        "reason": result.reason,
        **_stream("stdout", result.stdout_bytes),
        **_stream("stderr", result.stderr_bytes),
        "stdout_truncated": result.stdout_truncated,
        "stderr_truncated": result.stderr_truncated,
        "session_id": result.session_id,
    }


def _stream(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}

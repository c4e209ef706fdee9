"""Asking a sentry directly, without the 25-40 ms that the start of a `runsc` takes to pass the question on.

A sentry listens on a socket in runsc's state directory.  A call is one JSON object, `{"method", "arg"}`, and so is its
answer, `{"success", "err", "result"}`, without any frame around them (gvisor pkg/urpc; `containerManager` in
runsc/boot/controller.go).  Descriptors travel beside the call.  The sentry is not trusted: its answer is bounded.
"""

import asyncio
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from space.core.errors import RuntimeFailed

MAX_ANSWER = 64 * 1024
CONNECT_SECONDS = 5.0


class SentryRefused(Exception):
    """The sentry answered that it did not do it; the text is what it said."""


async def call(path: Path, method: str, arg: Any = None, *, fds: Sequence[int] = (), timeout: float = 30) -> Any:
    """Call a method of the sentry that listens at `path`; return its result.

    Raises:
        SentryRefused: it says why not.
        RuntimeFailed: nothing listens, or what it answers cannot be read, or not in time.
    """
    try:
        return await asyncio.to_thread(_call, path, {"method": method, "arg": arg}, fds, timeout)
    except (OSError, ValueError) as error:
        raise RuntimeFailed(f"the sentry at {path.name} does not answer {method}: {error}") from error


def _call(path: Path, question: dict[str, Any], fds: Sequence[int], timeout: float) -> Any:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(CONNECT_SECONDS)
        link.connect(str(path))
        link.settimeout(timeout)
        data = json.dumps(question).encode()
        sent = socket.send_fds(link, [data], list(fds)) if fds else link.send(data)
        if sent < len(data):
            link.sendall(data[sent:])
        answer = _object(link)
    if answer.get("success") is not True:
        raise SentryRefused(str(answer.get("err", ""))[:2000])
    return answer.get("result")


def _object(link: socket.socket) -> dict[str, Any]:
    """Read one JSON object; nothing says where it ends but itself."""
    received = b""
    while len(received) < MAX_ANSWER:
        piece = link.recv(65536)
        if not piece:
            raise ValueError("it closed the connection")
        received += piece
        if received.rstrip().endswith(b"}"):
            try:
                found = json.loads(received)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
    raise ValueError("its answer is no object")

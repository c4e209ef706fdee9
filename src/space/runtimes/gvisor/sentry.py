"""Asking a sentry directly, without the 25-40 ms that the start of a `runsc` takes to pass the question on.

A sentry listens on a socket in runsc's state directory.  A call is one JSON object, `{"method", "arg"}`, and so is its
answer, `{"success", "err", "result"}`, without any frame around them (gvisor pkg/urpc; `containerManager` in
runsc/boot/controller.go).  Descriptors travel beside the call.  The sentry is not trusted: its answer is bounded, in
bytes and in time, and one that does not answer occupies no thread that others need.
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


async def call(
    path: Path,
    method: str,
    arg: Any = None,
    *,
    fds: Sequence[int] = (),
    timeout: float = 30,
    max_answer: int = MAX_ANSWER,
) -> Any:
    """Call a method of the sentry that listens at `path`; return its result.

    Raises:
        SentryRefused: it says why not.
        RuntimeFailed: nothing listens, or what it answers cannot be read, or not in time.
    """
    try:
        async with asyncio.timeout(timeout):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
                link.setblocking(False)
                return await _ask(link, path, {"method": method, "arg": arg}, fds, max_answer)
    except (OSError, ValueError) as error:
        raise RuntimeFailed(f"the sentry at {path.name} does not answer {method}: {error}") from error


async def _ask(link: socket.socket, path: Path, question: dict[str, Any], fds: Sequence[int], max_answer: int) -> Any:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_SECONDS):
        await loop.sock_connect(link, str(path))
    data = json.dumps(question).encode()
    if fds:  # a new connection has room for them
        data = data[socket.send_fds(link, [data], list(fds)) :]
    await loop.sock_sendall(link, data)
    answer = await _object(link, max_answer)
    if answer.get("success") is not True:
        raise SentryRefused(str(answer.get("err", ""))[:2000])
    return answer.get("result")


async def _object(link: socket.socket, most: int) -> dict[str, Any]:
    """Read one JSON object; nothing says where it ends but itself."""
    loop = asyncio.get_running_loop()
    received = b""
    while len(received) < most:
        piece = await loop.sock_recv(link, 65536)
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

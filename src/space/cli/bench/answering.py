"""The other end of `Child`: answers questions from stdin until it closes."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

LONGEST_LINE = 64 << 20
Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


async def answer_questions(answer: Answer) -> None:
    """Answer one JSON line with one JSON line; what goes wrong is an answer, too.

    Read without a thread: one that waits for stdin would keep a process alive whose other tasks have failed.
    """
    lines = asyncio.StreamReader(limit=LONGEST_LINE)
    protocol = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while True:
        line = await lines.readline()
        if not line:
            return
        try:
            found = await answer(json.loads(line))
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()

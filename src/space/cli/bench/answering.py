"""The other end of `Child`: answers questions from stdin until it closes."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


async def answer_questions(answer: Answer) -> None:
    """Answer one JSON line with one JSON line; what goes wrong is an answer, too."""
    while True:
        line = await asyncio.to_thread(sys.stdin.buffer.readline)
        if not line:
            return
        try:
            found = await answer(json.loads(line))
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()

"""The baselines of `space bench api` and `output`: bare FastAPI routes on the same HTTP server."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response, StreamingResponse

from space.app.listener import Listener, listen, url_of
from space.cli.bench.answering import answer_questions

PIECE = bytes(65536)


def make_app(answers: dict[str, bytes]) -> FastAPI:
    """Make an application whose routes return given bytes, and nothing else."""
    app = FastAPI(openapi_url=None)

    @app.get("/answer/{name}")
    async def answer(name: str) -> Response:
        return Response(answers[name], media_type="application/json")

    @app.get("/bytes/{count}")
    async def zeros(count: int) -> Response:
        return StreamingResponse(_pieces(count), media_type="application/octet-stream")

    return app


async def _pieces(count: int) -> AsyncIterator[bytes]:
    while count > 0:
        yield PIECE[:count]
        count -= len(PIECE)


async def main() -> None:
    """Answer `{"answers": {name: base64}}` with `{"url"}`."""
    answers: dict[str, bytes] = {}
    sock = listen("127.0.0.1:0", setting="the benchmark")
    listener = Listener(make_app(answers), sock)
    serving = asyncio.create_task(listener.serve_until_stopped())

    async def reply(question: dict[str, Any]) -> dict[str, Any]:
        answers.update({name: base64.b64decode(text) for name, text in question.get("answers", {}).items()})
        return {"url": url_of(sock)}

    try:
        await answer_questions(reply)
    finally:
        listener.stop()
        await serving
        sock.close()


if __name__ == "__main__":
    asyncio.run(main())

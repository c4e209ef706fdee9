"""The server of `space bench api`: the whole control plane over a node in memory, in a process of its own.

Machines are not what is measured, and a hundred of them would not leave the CPU alone.
"""

import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import structlog

from space.app.compose import build_control
from space.app.listener import Listener, listen, url_of
from space.cli.bench.answering import answer_questions
from space.config import Settings
from space.host.clock import SystemClock
from space.server import create_api
from space.storage.sql.store import open_store
from space.testing.node import FakeNode
from space.testing.templates import FakeTemplates


async def main(directory: Path) -> None:
    """Answer any question with `{"url", "token"}`."""
    store = open_store(directory / "space.db")
    node = FakeNode()
    sock = listen("127.0.0.1:0", setting="the benchmark")
    control = build_control(
        Settings(data_dir=directory, memory_reserve_mib=0, default_quota_sandboxes=None),
        store=store,
        node=node,
        templates=FakeTemplates(),
        clock=SystemClock(),
        data_plane_url=lambda: url_of(sock),
        checks={},
    )
    listener = Listener(create_api(control.services), sock)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.aclose)
        stack.callback(sock.close)
        secrets = await control.accounts.bootstrap(cli_secret=None)
        loops = [asyncio.create_task(run()) for run in control.loops.values()]
        serving = asyncio.create_task(listener.serve_until_stopped())

        async def reply(_: dict[str, Any]) -> dict[str, Any]:
            return {"url": url_of(sock), "token": secrets.cli_token}

        try:
            await answer_questions(reply)
        finally:
            listener.stop()
            await serving
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)


if __name__ == "__main__":
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(40),  # as a server in production: no line a request here
    )
    with tempfile.TemporaryDirectory(prefix="space-bench-") as name:
        asyncio.run(main(Path(name)))

"""The server of `space bench api`: the whole control plane over a node in memory, in a process of its own.

Machines are not what is measured, and a hundred of them would not leave the CPU alone.
"""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio

from space.app.compose import build_control
from space.app.listener import Listener, listen, url_of
from space.cli.bench.answering import answer_questions
from space.config import Settings
from space.host.clock import SystemClock
from space.server import create_api
from space.storage.sql.store import open_store
from space.telemetry import configure_logging
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
        tasks = await stack.enter_async_context(anyio.create_task_group())
        for run in control.loops.values():
            tasks.start_soon(run)
        tasks.start_soon(listener.serve_until_stopped)

        async def reply(_: dict[str, Any]) -> dict[str, Any]:
            return {"url": url_of(sock), "token": secrets.cli_token}

        await answer_questions(reply)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="space-bench-") as name, (Path(name) / "log").open("w") as log:
        configure_logging(log_format="json", level="info", stream=log)  # as a server that `space up --detach` started
        asyncio.run(main(Path(name)))

"""The baselines of `space bench`: machines without a control plane, in a process of their own.

Each is what runsc itself does, with the flags and the bundle that SPACE uses; all else, from network to token, is
prepared before the clock starts.  `run` and `restore` end when the agent inside has answered, `checkpoint` when runsc
has.  `node` is the node's own `ensure`, called directly: what SPACE adds is node less run, and create less node.

Run as `python -m`, as root, on the machine of the server whose templates it uses.
"""

import asyncio
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from space.app.compose import build_node
from space.cli.bench.answering import answer_questions
from space.cli.bench.bare_runsc import BareRunsc, new_order, remove_instance
from space.config import Settings
from space.core.sandbox import Resources
from space.host.clock import SystemClock
from space.host.instance import Instance
from space.host.reaper import Reaper
from space.node.agent import Node
from space.storage.objects import open_objects
from space.telemetry import configure_logging
from space.templates.agent import build_agent_dir
from space.templates.store import TemplateStore

DEFAULT_MIB = Resources().memory_mib


async def measure_node(node: Node, digest: str, resources: Resources) -> float:
    """Have a node make one machine, return the milliseconds, and remove it."""
    order = new_order(digest, resources)
    began = time.perf_counter()
    await node.ensure(order)
    took = (time.perf_counter() - began) * 1000
    await node.remove(order.ref)
    return took


@asynccontextmanager
async def running_node(directory: Path, instance: Instance, agent_dir: Path, templates: Path) -> AsyncIterator[Node]:
    """Run a node of its own; leave nothing behind."""
    store = TemplateStore(templates)
    settings = Settings(data_dir=directory)
    try:
        objects = open_objects(settings.object_store, {})
        node = build_node(
            settings, instance=instance, agent_dir=agent_dir, templates=store, objects=objects, clock=SystemClock()
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.run)
            await node.started()
            yield node
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await remove_instance(instance, directory)


async def main(data_dir: Path, memory_mib: int) -> None:
    """Answer `{"what"}` of run, restore, checkpoint, node with `{"ms"}`, burst (`count`) with `{"all_ms"}`.

    `pss` answers with `{"pss_mib"}` of an idle machine that nobody is connected to, `names` with the instances' tags.
    """
    templates = data_dir / "templates"
    directory = Path(tempfile.mkdtemp(prefix="space-bench-"))
    resources = Resources(memory_mib=memory_mib)
    tags: list[str] = []
    try:
        agent_dir = await asyncio.to_thread(build_agent_dir, directory / "agent")
        digest = (await TemplateStore(templates).resolve("base")).digest
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(Reaper())
            runsc = BareRunsc(directory / "bare", templates, agent_dir, resources)
            await stack.enter_async_context(runsc.opened())
            tags.append(runsc.tag)
            nodes: list[Node] = []

            async def node() -> float:
                if not nodes:  # only for those who ask
                    instance = Instance(secrets.token_hex(8))
                    tags.append(instance.tag)
                    running = running_node(directory / "node", instance, agent_dir, templates)
                    nodes.append(await stack.enter_async_context(running))
                return await measure_node(nodes[0], digest, resources)

            single: dict[str, Callable[[], Awaitable[float]]] = {
                "run": runsc.run,
                "restore": runsc.restore,
                "checkpoint": runsc.checkpoint,
                "node": node,
            }

            async def answer(question: dict[str, Any]) -> dict[str, Any]:
                match question["what"]:
                    case "names":
                        return {"tags": tags}
                    case "pss":
                        return {"pss_mib": await runsc.pss_mib()}
                    case "burst":
                        return {"all_ms": await runsc.burst(question["count"])}
                    case what:
                        return {"ms": await single[what]()}

            await answer_questions(answer)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    configure_logging(log_format="json", level="warning", stream=sys.stderr)
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else DEFAULT_MIB))

"""The server of one machine: its parts, and the order in which they start and stop."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from space.app.compose import Control, build_control, build_node
from space.app.listener import Listener, listen, url_of
from space.config import Settings
from space.core.store import Store
from space.host.clock import SystemClock
from space.host.instance import Instance
from space.node.agent import Node
from space.server.api import create_api
from space.server.dataplane.app import create_data_plane
from space.storage.objects import open_objects
from space.storage.seal import KeyFile
from space.templates.agent import build_agent_dir
from space.templates.store import TemplateStore

log = structlog.get_logger(__name__)

#: Requests that are still being answered this long after a stop are cut.
STOP_SECONDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Node, control plane and listeners in one event loop."""

    node: Node
    control: Control
    listeners: tuple[Listener, ...]
    api_url: str

    async def run(self, announce: Callable[[], Awaitable[None]], stopping: asyncio.Event) -> None:
        """Serve until `stopping`; `announce` is awaited once all is recovered and before the first request.

        Sandboxes are left running.  A loop that fails takes the server down: the next start repairs what it left.
        """
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(self.node.run(), name="node")]
            await self.node.started()
            await self.control.commands.reconcile()
            background += [group.create_task(run(), name=name) for name, run in self.control.loops.items()]
            await announce()
            serving = [group.create_task(listener.serve_until_stopped()) for listener in self.listeners]
            await stopping.wait()
            log.info("server.stopping")
            for listener in self.listeners:
                listener.stop()
            await asyncio.wait(serving, timeout=STOP_SECONDS)
            await self.control.services.runs.aclose()  # sandboxes and commands whose callers just left
            await self.control.commands.aclose()
            for task in background:
                task.cancel()


async def assemble(settings: Settings, instance: Instance, store: Store) -> Server:
    """Bind the addresses and put the parts together; nothing runs yet.

    The sockets listen from here on, so that clients who come early wait instead of being refused.
    """
    api_socket = listen(settings.listen, setting="SPACE_LISTEN")
    data_plane_socket = listen(settings.data_plane_listen, setting="SPACE_DATA_PLANE_LISTEN")
    data_plane_url = (settings.data_plane_public_url or url_of(data_plane_socket)).rstrip("/")
    clock = SystemClock()
    templates = TemplateStore(settings.data_dir / "templates")
    agent_dir = await asyncio.to_thread(build_agent_dir, settings.data_dir / "agent")
    objects = open_objects(settings.object_store, os.environ)
    node = build_node(
        settings, instance=instance, agent_dir=agent_dir, templates=templates, objects=objects, clock=clock
    )
    control = build_control(
        settings,
        store=store,
        node=node,
        templates=templates,
        clock=clock,
        data_plane_url=lambda: data_plane_url,
        checks={"node": node.started},
        sealer=KeyFile(settings.data_dir / "seal.key"),
        objects=objects,
    )
    listeners = (
        Listener(create_api(control.services), api_socket),
        Listener(create_data_plane(control.services), data_plane_socket),
    )
    return Server(node=node, control=control, listeners=listeners, api_url=url_of(api_socket))

"""`space up`: API, node and data plane of one machine in this process, until SIGTERM or Ctrl-C."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator

import structlog

from space.app import data_dir
from space.app.compose import build_control, build_node
from space.app.listener import Listener, listen, url_of
from space.app.own_process import NAME, SOURCE_ROOT, first_password
from space.config import Settings
from space.core.errors import SpaceError
from space.host.clock import SystemClock
from space.host.daemon import build_fingerprint, remove_process_file, write_process_file
from space.host.instance import Instance
from space.host.reaper import Reaper
from space.sdk.settings import read_cli_file, write_cli_file
from space.server.api import create_api
from space.server.dataplane.app import create_data_plane
from space.storage.sql.store import open_store
from space.telemetry import configure_logging
from space.templates.agent import build_agent_dir
from space.templates.store import TemplateStore

log = structlog.get_logger(__name__)


def run_up(settings: Settings) -> int:
    """Serve until told to stop; return the exit code.  What goes wrong at the start is one sentence on stderr."""
    if os.geteuid() != 0:
        print("space up: must run as root: it makes network namespaces and mounts; try sudo", file=sys.stderr)
        return 1
    configure_logging(log_format=settings.log_format, level=settings.log_level)
    os.umask(0o077)
    code = 0
    try:
        instance = Instance(data_dir.prepare(settings.data_dir))
        asyncio.run(_serve(settings, instance))
    except* SpaceError as errors:
        for error in _leaves(errors):
            print(f"space up: {error.message}", file=sys.stderr)
        code = 1
    return code


async def _serve(settings: Settings, instance: Instance) -> None:
    store = open_store(settings.data_dir / "space.db")  # first: it holds the lock on the data directory
    api_socket = listen(settings.listen, setting="SPACE_LISTEN")
    data_plane_socket = listen(settings.data_plane_listen, setting="SPACE_DATA_PLANE_LISTEN")
    api_url = url_of(api_socket)
    data_plane_url = (settings.data_plane_public_url or url_of(data_plane_socket)).rstrip("/")
    clock = SystemClock()
    templates = TemplateStore(settings.data_dir / "templates")
    agent_dir = await asyncio.to_thread(build_agent_dir, settings.data_dir / "agent")
    node = build_node(settings, instance=instance, agent_dir=agent_dir, templates=templates, clock=clock)
    control = build_control(
        settings,
        store=store,
        node=node,
        templates=templates,
        clock=clock,
        data_plane_url=lambda: data_plane_url,
        checks={"node": node.started},
    )
    listeners = (
        Listener(create_api(control.services), api_socket),
        Listener(create_data_plane(control.services), data_plane_socket),
    )
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        async with Reaper(), asyncio.TaskGroup() as group:
            background = [group.create_task(node.run(), name="node")]
            await node.started()
            await control.commands.reconcile()
            background += [group.create_task(run(), name=name) for name, run in control.loops.items()]
            known = _cli_secret(settings)
            secrets = await control.accounts.bootstrap(cli_secret=known)
            if (token := secrets.cli_token or known) is not None:
                write_cli_file(settings.data_dir / "cli.json", api_url=api_url, token=token)
            serving = [group.create_task(listener.serve_until_stopped()) for listener in listeners]
            write_process_file(
                settings.data_dir / "run",
                NAME,
                root=SOURCE_ROOT,
                build=build_fingerprint(SOURCE_ROOT),
                api_url=api_url,
                log=None,
            )
            log.info("server.started", api=api_url, data_plane=data_plane_url, data_dir=str(settings.data_dir))
            _announce(api_url, secrets.admin_email, secrets.admin_password)
            await stopping.wait()
            log.info("server.stopping")
            for listener in listeners:
                listener.stop()
            await asyncio.wait(serving, timeout=5)
            await control.services.runs.aclose()  # sandboxes and commands whose callers just left
            await control.commands.aclose()
            for task in background:
                task.cancel()
    finally:
        remove_process_file(settings.data_dir / "run", NAME)
        await store.aclose()


def _leaves(errors: BaseExceptionGroup[SpaceError]) -> Iterator[SpaceError]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _cli_secret(settings: Settings) -> str | None:
    found = read_cli_file(settings.data_dir / "cli.json")
    return None if found is None else found["token"]


def _announce(api_url: str, email: str, password: str | None) -> None:
    """Tell whoever started us that we serve: a parent through descriptor SPACE_READY_FD, else the terminal.

    The password is shown here and never again; it does not go through the log.
    """
    ready = os.environ.pop("SPACE_READY_FD", None)
    if ready is not None:
        message = json.dumps({"api_url": api_url, "admin_email": email, "admin_password": password})
        with contextlib.suppress(OSError), os.fdopen(int(ready), "w") as pipe:
            pipe.write(message)
    elif password is not None:
        print(first_password(email, password), file=sys.stderr, flush=True)

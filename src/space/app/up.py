"""`space up`: API, node and data plane of one machine in this process, until SIGTERM or Ctrl-C."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator

import structlog

from space.app import data_dir
from space.app.claim import claimed
from space.app.own_process import NAME, SOURCE_ROOT, first_password
from space.app.server import Server, assemble
from space.config import Settings
from space.core.errors import SpaceError
from space.host.daemon import build_fingerprint, remove_process_file, write_process_file
from space.host.instance import Instance
from space.host.reaper import Reaper
from space.sdk.settings import read_cli_file, write_cli_file
from space.storage.sql.store import open_store
from space.telemetry import configure_logging

log = structlog.get_logger(__name__)


def run_up(settings: Settings) -> int:
    """Serve until told to stop; return the exit code.  What goes wrong at the start is one sentence on stderr."""
    if os.geteuid() != 0:
        print("space up: must run as root: it makes network namespaces and mounts; try sudo", file=sys.stderr)
        return 1
    configure_logging(log_format=settings.log_format, level=settings.log_level)
    os.umask(0o077)
    _raise_descriptor_limit()
    code = 0
    try:
        instance = Instance(data_dir.prepare(settings.data_dir))
        asyncio.run(_serve(settings, instance))
    except* SpaceError as errors:
        for error in _leaves(errors):
            print(f"space up: {error.message}", file=sys.stderr)
        code = 1
    return code


def _raise_descriptor_limit() -> None:
    """Take all descriptors that we may have: each stream and each running command holds one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(settings: Settings, instance: Instance) -> None:
    store = open_store(settings.data_dir / "space.db")  # first: it holds the lock on the data directory
    try:
        # Of one that was killed: its pid may be a stranger's by now, and no `kill $(cat …)` is to meet it.
        remove_process_file(settings.data_dir / "run", NAME)
        with claimed(instance, settings.data_dir):
            async with Reaper():
                server = await assemble(settings, instance, store)
                stopping = asyncio.Event()
                loop = asyncio.get_running_loop()
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, stopping.set)
                await server.run(lambda: _announce_start(settings, server), stopping)
    finally:
        remove_process_file(settings.data_dir / "run", NAME)
        await store.aclose()


async def _announce_start(settings: Settings, server: Server) -> None:
    """Leave what programs on this machine need to find us, and tell whoever started us."""
    found = read_cli_file(settings.data_dir / "cli.json")
    known = None if found is None else found["token"]
    made = await server.control.accounts.bootstrap(cli_secret=known)
    if (token := made.cli_token or known) is not None:
        write_cli_file(settings.data_dir / "cli.json", api_url=server.api_url, token=token)
    write_process_file(
        settings.data_dir / "run",
        NAME,
        root=SOURCE_ROOT,
        build=build_fingerprint(SOURCE_ROOT),
        api_url=server.api_url,
        log=None,
    )
    log.info("server.started", api=server.api_url, data_dir=str(settings.data_dir))
    _announce(server.api_url, made.admin_email, made.admin_password)


def _leaves(errors: BaseExceptionGroup[SpaceError]) -> Iterator[SpaceError]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


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

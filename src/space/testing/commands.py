"""The control plane of `control_plane.py` with accounts, commands and files, and a caller who has signed in."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from space.control.accounts import Accounts
from space.control.activity import Activity
from space.control.audit import Audit
from space.control.awake import Awake
from space.control.commands import Commands
from space.control.files import Files
from space.control.idempotency import Idempotency
from space.control.observations import Observations
from space.control.projects import Projects
from space.control.run import Runs
from space.control.tokens import Tokens
from space.core.account import Call, IdempotencyRef, Principal
from space.core.command import CommandSpec
from space.core.event import AuditEntry
from space.core.store import AuditFilter
from space.testing.control_plane import ControlPlane, control_plane


@dataclass(slots=True)
class CommandPlane:
    """What tests of commands use."""

    plane: ControlPlane
    tokens: Tokens
    accounts: Accounts
    projects: Projects
    audit: Audit
    activity: Activity
    awake: Awake
    commands: Commands
    files: Files
    runs: Runs
    idempotency: Idempotency
    who: Principal  #: the local CLI's token
    admin_password: str | None

    def call(
        self, action: str = "createCommand", *, who: Principal | None = None, idempotency: IdempotencyRef | None = None
    ) -> Call:
        return Call(
            principal=who or self.who, action=action, request_id="req-1", address="127.0.0.1", idempotency=idempotency
        )

    async def audited(self, **where: Any) -> list[AuditEntry]:
        """Return the entries that match, oldest first."""
        return list(reversed((await self.audit.list(self.who, AuditFilter(**where), limit=1000)).items))


def command(*argv: str, **changes: Any) -> CommandSpec:
    """Return a command; `true` unless something else is asked for."""
    return CommandSpec(**{"argv": argv or ("true",), **changes})


@contextlib.asynccontextmanager
async def command_plane(directory: Path, *, is_observed: bool = True, **options: Any) -> AsyncIterator[CommandPlane]:
    """Open all parts on `directory`; the node's observations are followed if `is_observed`."""
    async with control_plane(directory, **options) as plane:
        store, node, clock = plane.store, plane.node, plane.clock
        tokens = Tokens(store, clock)
        accounts = Accounts(store, tokens, clock)
        started = await accounts.bootstrap(cli_secret=_read(directory / "cli"))
        if started.cli_token is not None:
            (directory / "cli").write_text(started.cli_token)
        activity = Activity(store, clock)
        awake = Awake(store, clock, plane.sandboxes.changes, plane.operations, activity)
        commands = Commands(store, node, clock, tokens=tokens, activity=activity, awake=awake)
        files = Files(store, node, clock, awake)
        parts = CommandPlane(
            plane=plane,
            tokens=tokens,
            accounts=accounts,
            projects=Projects(store, clock),
            audit=Audit(store, clock),
            activity=activity,
            awake=awake,
            commands=commands,
            files=files,
            runs=Runs(plane.sandboxes, plane.operations, commands, files),
            idempotency=Idempotency(store, clock),
            who=await tokens.verify((directory / "cli").read_text()),
            admin_password=started.admin_password,
        )
        tasks = [asyncio.create_task(commands.run())]
        if is_observed:
            tasks.append(asyncio.create_task(Observations(store, node, clock, commands, reconcile_seconds=0.05).run()))
        try:
            yield parts
            await parts.runs.aclose()
            await commands.aclose()
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None

"""`space up`: a server on this machine."""

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up", epilog="**Examples**\n\n`space up`\n\n`space up --detach && space run -- echo hello`")(up)


def up(
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once the server answers.")] = False,
) -> None:
    """Start SPACE on this machine: API, node and data plane in one process. Needs root."""
    from space.config import Settings

    if detach:
        from space.app.detached import start_detached as start
    else:
        from space.app.up import run_up as start
    raise typer.Exit(start(Settings()))

"""`space down`: stop the server of this machine."""

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("down")(down)


def down(
    machines: Annotated[
        bool, typer.Option("--machines", help="Also end every sandbox's machine and remove namespaces and mounts.")
    ] = False,
) -> None:
    """Stop the server that `space up` started. Sandboxes run on and are found again by the next `space up`."""
    from space.app.detached import stop
    from space.config import Settings

    settings = Settings()
    code = stop(settings)
    if code == 0 and machines:
        import asyncio

        from space.app.teardown import tear_down

        typer.echo(f"  Ended {asyncio.run(tear_down(settings))} machines.")
    raise typer.Exit(code)

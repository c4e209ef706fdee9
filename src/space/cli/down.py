"""`space down`: stop the server of this machine."""

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("down")(down)


def down() -> None:
    """Stop the server that `space up` started. Sandboxes run on and are found again by the next `space up`."""
    from space.app.detached import stop
    from space.config import Settings

    raise typer.Exit(stop(Settings()))

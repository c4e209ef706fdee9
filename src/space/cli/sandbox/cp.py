"""`space sandbox cp`."""

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("cp")(cp)


def cp(paths: Annotated[list[str], typer.Argument()]) -> None:
    """Copy."""
    raise NotImplementedError

"""`space sandbox get`."""

from typing import Annotated

import typer

from space.cli.connection import connect
from space.cli.output import Format, OutputOption, print_fields, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("get")(get)


def get(
    sandbox_id: Annotated[str, typer.Argument(metavar="ID", help="The sandbox.")],
    output: OutputOption = Format.TABLE,
) -> None:
    """Show one sandbox."""

    with connect() as client:
        raw = dict(client.get_sandbox(sandbox_id).raw)
    (print_json if output is Format.JSON else print_fields)(raw)

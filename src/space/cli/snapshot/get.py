"""`space snapshot get`."""

from typing import Annotated

import typer

from space.cli.connection import connect
from space.cli.output import Format, OutputOption, print_fields, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("get")(get)


def get(
    snapshot_id: Annotated[str, typer.Argument(metavar="ID", help="The snapshot.")],
    output: OutputOption = Format.TABLE,
) -> None:
    """Show one snapshot."""
    with connect() as client:
        raw = dict(client.snapshots.get(snapshot_id).raw)
    (print_json if output is Format.JSON else print_fields)(raw)

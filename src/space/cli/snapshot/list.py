"""`space snapshot list`."""

from itertools import islice
from typing import Annotated

import typer

from space.cli.connection import connect
from space.cli.output import Format, OutputOption, age, print_json, print_table
from space.cli.progress import MIB


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("list", epilog="**Example**\n\n`space snapshot list --sandbox ID -o json`")(list_snapshots)
    app.command("ls", hidden=True)(list_snapshots)


def list_snapshots(
    sandbox: Annotated[str | None, typer.Option(metavar="ID", help="Only those of this sandbox.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many.", min=1)] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """List the snapshots that were asked for, oldest first."""
    with connect() as client:
        snapshots = list(islice(client.snapshots.list(sandbox=sandbox), limit))
    if output is Format.JSON:
        print_json({"items": [dict(snapshot.raw) for snapshot in snapshots]})
        return
    print_table(
        ("id", "name", "sandbox", "template", "MiB", "MiB stored", "age"),
        (
            (
                snapshot.id,
                snapshot.name,
                snapshot.sandbox_id,
                snapshot.template,
                f"{snapshot.bytes_read / MIB:.1f}",
                f"{snapshot.bytes_uploaded / MIB:.1f}",
                age(snapshot.created_at),
            )
            for snapshot in snapshots
        ),
    )

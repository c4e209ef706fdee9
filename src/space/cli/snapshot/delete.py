"""`space snapshot delete`."""

from typing import Annotated

import typer

from space.cli import failure
from space.cli.connection import connect
from space.cli.output import Format, OutputOption, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("delete", epilog="**Example**\n\n`space snapshot delete $(space snapshot list | cut -f1)`")(delete)
    app.command("rm", hidden=True)(delete)


def delete(
    snapshot_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The snapshots.")],
    output: OutputOption = Format.TABLE,
) -> None:
    """Delete snapshots. One that is some sandbox's last durable state is kept: suspend or delete that one first."""
    from space.sdk import SpaceError

    deleted: list[str] = []
    code = 0
    with connect() as client:
        for snapshot_id in snapshot_ids:
            try:
                client.snapshots.delete(snapshot_id)
                deleted.append(snapshot_id)
            except SpaceError as error:
                code = failure.tell(error, as_json=output is Format.JSON)
    if output is Format.JSON:
        print_json({"deleted": deleted})
    elif deleted:
        print("\n".join(deleted))
    raise typer.Exit(code)

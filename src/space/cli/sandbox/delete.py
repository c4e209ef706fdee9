"""`space sandbox delete`."""

from typing import Annotated

import typer

from space.cli import failure
from space.cli.connection import connect
from space.cli.output import Format, OutputOption, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("delete", epilog="**Example**\n\n`space sandbox delete $(space sandbox list | cut -f1)`")(delete)
    app.command("rm", hidden=True)(delete)


def delete(
    sandbox_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The sandboxes.")],
    wait: Annotated[bool, typer.Option(help="Return once they are gone.")] = True,
    output: OutputOption = Format.TABLE,
) -> None:
    """Delete sandboxes and all that runs in them."""
    from space.sdk import SpaceError

    deleted: list[str] = []
    code = 0
    with connect() as client:
        operations = []
        for sandbox_id in sandbox_ids:
            try:
                operations.append((sandbox_id, client.delete_sandbox(sandbox_id)))
            except SpaceError as error:
                code = failure.tell(error, as_json=output is Format.JSON)
        for sandbox_id, operation in operations:
            try:
                if wait:
                    client.wait(operation, timeout=60)
                deleted.append(sandbox_id)
            except SpaceError as error:
                code = failure.tell(error, as_json=output is Format.JSON)
    if output is Format.JSON:
        print_json({"deleted": deleted})
    else:
        print("\n".join(deleted))
    raise typer.Exit(code)

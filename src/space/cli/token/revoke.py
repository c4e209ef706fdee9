"""`space token revoke`."""

from typing import Annotated

import typer

from space.cli.connection import connect
from space.cli.output import Format, OutputOption, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("revoke")(revoke)


def revoke(
    token_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The tokens.")],
    output: OutputOption = Format.TABLE,
) -> None:
    """Revoke tokens; they stop working everywhere within five seconds."""

    with connect() as client:
        for token_id in token_ids:
            client.revoke_token(token_id)
    if output is Format.JSON:
        print_json({"revoked": token_ids})
    else:
        print("\n".join(token_ids))

"""`space token list`."""

import typer

from space.cli.connection import connect
from space.cli.output import Format, OutputOption, print_json, print_table

COLUMNS = ("id", "name", "prefix", "scopes", "created_at", "expires_at", "last_used_at", "revoked_at")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("list")(list_tokens)
    app.command("ls", hidden=True)(list_tokens)


def list_tokens(output: OutputOption = Format.TABLE) -> None:
    """List tokens, without their secrets."""

    with connect() as client:
        tokens = client.tokens()
    if output is Format.JSON:
        print_json({"items": [dict(token) for token in tokens]})
        return
    print_table(COLUMNS, ([_cell(token.get(column)) for column in COLUMNS] for token in tokens))


def _cell(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, list) else value

"""`space token create`."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from space.cli.connection import connect
from space.cli.durations import parse_duration
from space.cli.output import Format, OutputOption, print_json

EXAMPLES = """**Examples**

`space token create ci --scope sandboxes:write --scope commands:run --expires 30d`

`space token create dashboard --scope read-only`
"""
READ_ONLY = "read-only"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("create", epilog=EXAMPLES)(create)


def create(
    name: Annotated[str, typer.Argument(help="What it is for.")],
    scope: Annotated[list[str], typer.Option("--scope", "-s", help="A right, or `read-only`; repeatable.")],
    kind: Annotated[str | None, typer.Option(help="`service` (the default) or `e2b`.")] = None,
    expires: Annotated[
        str | None, typer.Option(help="How long it lives, such as 12h or 30d; default: for ever.")
    ] = None,
    project: Annotated[str | None, typer.Option(help="The project that it acts in.")] = None,
    template: Annotated[
        list[str] | None, typer.Option("--template", "-T", help="A template that it may use; default: all.")
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Create a token and print its secret, which is not shown again."""

    expires_at = None if expires is None else datetime.now(UTC) + parse_duration(expires)
    preset, scopes = (READ_ONLY, None) if scope == [READ_ONLY] else (None, scope)
    with connect() as client:
        token = client.create_token(
            name, scopes, preset=preset, kind=kind, expires_at=expires_at, project=project, templates=template or None
        )
    if output is Format.JSON:
        print_json(dict(token))
    else:
        print(token.get("token") or token.get("secret"))

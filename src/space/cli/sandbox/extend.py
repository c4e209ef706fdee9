"""`space sandbox extend`."""

from typing import Annotated, Any

import typer

from space.cli import failure
from space.cli.connection import connect
from space.cli.durations import parse_duration
from space.cli.output import Format, OutputOption, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("extend", epilog="**Example**\n\n`space sandbox extend --for 2h ID`")(extend)


def extend(
    sandbox_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The sandboxes.")],
    length: Annotated[str, typer.Option("--for", help="How long to live from now on, such as 90m, 2h or 7d.")],
    output: OutputOption = Format.TABLE,
) -> None:
    """Let sandboxes that have an end of life live longer, never shorter; print when they end now."""
    from space.sdk import Sandbox, SpaceError

    seconds = int(parse_duration(length, option="--for").total_seconds())
    as_json = output is Format.JSON
    extended: list[dict[str, Any]] = []
    code = 0
    with connect() as client:
        for sandbox_id in sandbox_ids:
            try:
                info = Sandbox.connect(sandbox_id, client=client).extend(seconds)
            except SpaceError as error:
                code = failure.tell(error, as_json=as_json)
                continue
            extended.append(dict(info.raw))
            if not as_json:
                print(f"{info.id}\t{info.expires_at.isoformat(timespec='seconds') if info.expires_at else '-'}")
    if as_json:
        print_json({"sandboxes": extended})
    raise typer.Exit(code)

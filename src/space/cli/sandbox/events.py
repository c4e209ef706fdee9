"""`space sandbox events`."""

from typing import TYPE_CHECKING, Annotated

import typer

from space.cli.connection import connect
from space.cli.output import Format, OutputOption, print_json, print_table

if TYPE_CHECKING:
    from space.sdk import TimelineEvent


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("events")(events)


def events(
    sandbox_id: Annotated[str, typer.Argument(metavar="ID", help="The sandbox.")],
    limit: Annotated[int | None, typer.Option(help="At most so many.", min=1, max=1000)] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show what happened to a sandbox: states, operations and their reasons, oldest first."""
    from space.sdk import Sandbox

    with connect() as client:
        timeline = Sandbox.connect(sandbox_id, client=client).timeline(limit=limit)
    if output is Format.JSON:
        print_json({"items": [dict(event.raw) for event in timeline]})
        return
    print_table(("at", "event", "data"), map(_row, timeline))


def _row(event: "TimelineEvent") -> tuple[object, ...]:
    return (event.at.isoformat(timespec="milliseconds") if event.at else None, event.type, event.data)

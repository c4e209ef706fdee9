"""`space sandbox list`."""

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from space.cli.connection import connect
from space.cli.output import Format, OutputOption, age, print_json, print_table
from space.cli.pairs import parse_pairs

if TYPE_CHECKING:
    from space.sdk import SandboxInfo

EXAMPLES = "**Examples**\n\n`space sandbox list --state suspended`\n\n`space sandbox list -m task=42 -o json`"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("list", epilog=EXAMPLES)(list_sandboxes)
    app.command("ls", hidden=True)(list_sandboxes)


def list_sandboxes(
    state: Annotated[str | None, typer.Option(help="Only those in this state.")] = None,
    template: Annotated[str | None, typer.Option("--template", "-T", help="Only those from this template.")] = None,
    runtime: Annotated[str | None, typer.Option(help="Only those on this runtime.")] = None,
    metadata: Annotated[list[str] | None, typer.Option("--metadata", "-m", help="KEY=VALUE that they carry.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many.", min=1)] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """List sandboxes."""

    with connect() as client:
        found = client.sandboxes(
            state=state,
            template=template,
            runtime=runtime,
            metadata=parse_pairs(metadata, "--metadata"),
            limit=None if limit is None else min(limit, 1000),
        )
        sandboxes = list(islice(found, limit))
    if output is Format.JSON:
        print_json({"items": [dict(sandbox.raw) for sandbox in sandboxes]})
        return
    print_table(
        ("id", "state", "template", "runtime", "age", "metadata", "reason"),
        ((s.id, s.state, s.template, s.runtime, age(s.created_at), s.metadata, _reason(s)) for s in sandboxes),
    )


def _reason(sandbox: "SandboxInfo") -> str | None:
    """Say why it failed or came down, and whether `recover` can bring it back."""
    if sandbox.state == "failed" and sandbox.restorable:
        return f"{sandbox.reason or 'unknown'}, restorable"
    return sandbox.reason

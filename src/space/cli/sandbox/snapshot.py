"""`space sandbox snapshot`."""

from typing import Annotated, Any

import typer

from space.cli import failure
from space.cli.connection import connect
from space.cli.output import Format, OutputOption, print_json
from space.cli.progress import Progress

EXAMPLES = "**Example**\n\n`space sandbox create -T $(space sandbox snapshot --name trained ID)`"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("snapshot", epilog=EXAMPLES)(snapshot)


def snapshot(
    sandbox_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The sandboxes.")],
    name: Annotated[str | None, typer.Option("--name", help="What to call it.")] = None,
    wait: Annotated[bool, typer.Option(help="Return once it is durable.")] = True,
    timeout: Annotated[float, typer.Option(help="Stop waiting after so many seconds; it goes on.", min=1)] = 300,
    output: OutputOption = Format.TABLE,
) -> None:
    """Save a moment of a sandbox that new ones can start from; print its id. The sandbox goes on."""
    from space.sdk import Sandbox, SpaceError

    as_json = output is Format.JSON
    taken: list[dict[str, Any]] = []
    code = 0
    with connect() as client:
        for sandbox_id in sandbox_ids:
            progress = Progress(is_quiet=as_json)
            try:
                source = Sandbox.connect(sandbox_id, client=client)
                made = source.snapshot(name, wait=wait, timeout=timeout, watch=progress)
            except SpaceError as error:
                code = failure.tell(error, as_json=as_json)
                continue
            finally:
                progress.clear()
            taken.append(dict(made.raw))
            if not as_json:
                print(made.id, flush=True)
    if as_json:
        print_json({"snapshots": taken})
    raise typer.Exit(code)

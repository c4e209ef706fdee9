"""`space sandbox cp`."""

from typing import Annotated

import typer

from space.cli.connection import connect
from space.cli.failure import MISUSED, CommandError
from space.cli.output import Format, OutputOption, print_json

EXAMPLES = """**Examples**

`space sandbox cp report.csv data/ ID:/home/user/`

`space sandbox cp ID:/home/user/out.txt .`

`space sandbox cp ID:/var/log/app.log - | less`
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("cp", epilog=EXAMPLES)(cp)


def cp(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE... TARGET", help="Paths; those in a sandbox as `ID:/path`, `-` is stdio."),
    ],
    output: OutputOption = Format.TABLE,
) -> None:
    """Copy files and directories into a sandbox or out of it.

    As with `cp -r`: into a directory that exists, or one written with a final `/`, things are put by their own names.
    Files arrive whole or not at all.
    """
    from space.cli.sandbox.transfer import download, upload
    from space.sdk import Sandbox

    *sources, target = paths
    places = [parse_place(path) for path in sources]
    into = parse_place(target)
    inside = {sandbox_id for sandbox_id, _ in [*places, into] if sandbox_id}
    if not sources:
        raise CommandError("cp wants at least one source and a target", exit_code=MISUSED)
    if len(inside) != 1 or any(bool(sandbox_id) == bool(into[0]) for sandbox_id, _ in places):
        raise CommandError("exactly one side must be in a sandbox, written as ID:/path", exit_code=MISUSED)
    with connect() as client:
        files = Sandbox.connect(inside.pop(), client=client).files
        names = [path for _, path in places]
        copied = upload(files, names, into[1]) if into[0] else download(files, names, into[1])
    if output is Format.JSON:
        print_json({"copied": copied})


def parse_place(text: str) -> tuple[str | None, str]:
    """Split `ID:/path`; anything else is a local path."""
    sandbox_id, colon, path = text.partition(":")
    if colon and sandbox_id.startswith("sbx") and sandbox_id.isalnum():
        if not path.startswith("/"):
            raise CommandError(
                f"{text!r}: a path in a sandbox is absolute, such as {sandbox_id}:/tmp", exit_code=MISUSED
            )
        return sandbox_id, path
    return None, text

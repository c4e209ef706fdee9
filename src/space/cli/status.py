"""`space status`: is there a server, and does it answer?"""

import typer

from space.cli.failure import FAILED
from space.cli.output import Format, OutputOption, print_fields, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("status")(status)


def status(output: OutputOption = Format.TABLE) -> None:
    """Say which server this command line talks to, whether it answers, and how many sandboxes it runs."""
    from space.sdk import Client, RetryPolicy, SpaceError

    with Client(retry=RetryPolicy(attempts=1)) as client:
        answer: dict[str, object] = {"api_url": client.transport.settings.api_url, "answers": True}
        try:
            answer["sandboxes_running"] = sum(1 for _ in client.sandboxes(state="running"))
        except SpaceError as error:
            answer |= {"answers": False, "error": error.message}
    (print_json if output is Format.JSON else print_fields)(answer)
    if not answer["answers"]:
        raise typer.Exit(FAILED)

"""`space config`: every setting of the server, with its value and what it means."""

import typer

from space.cli.output import Format, OutputOption, print_json, print_table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("config")(config)


def config(output: OutputOption = Format.TABLE) -> None:
    """Print the server's settings as this environment gives them."""
    import os

    from pydantic import ValidationError

    from space.cli.failure import MISUSED, CommandError
    from space.config import Settings

    try:
        values = Settings().model_dump(mode="json")
    except ValidationError as error:
        lines = [f"SPACE_{'_'.join(map(str, item['loc'])).upper()}: {item['msg']}" for item in error.errors()]
        raise CommandError("; ".join(lines), exit_code=MISUSED) from error
    rows = [
        {"name": f"SPACE_{name.upper()}", "value": value, "is_set": f"SPACE_{name.upper()}" in os.environ}
        for name, value in values.items()
    ]
    if output is Format.JSON:
        print_json({"settings": rows})
    else:
        print_table(
            ("setting", "value", "from"),
            ((row["name"], row["value"], "environment" if row["is_set"] else "default") for row in rows),
        )

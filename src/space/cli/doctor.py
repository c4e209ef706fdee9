"""`space doctor`: what works on this machine, and what to do about the rest."""

from typing import Annotated, Any

import typer

from space.cli.failure import FAILED
from space.cli.output import Format, OutputOption, print_json, print_table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="The same as `-o json`.")] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Check each runtime and each thing that SPACE needs: yes or no, why, and how to get it.

    Exit code 1 if no runtime works.
    """
    from space.app.doctor import doctor as examine

    rows = examine()
    if as_json or output is Format.JSON:
        print_json({"checks": rows})
    else:
        print_table(("check", "works", "why", "remedy"), map(_row, rows))
    runtimes = [row for row in rows if row.get("kind") == "runtime"]
    if not any(row.get("ok") for row in runtimes):
        raise typer.Exit(FAILED)


def _row(check: dict[str, Any]) -> tuple[object, ...]:
    return (check.get("name"), "yes" if check.get("ok") else "no", check.get("reason"), check.get("remedy"))

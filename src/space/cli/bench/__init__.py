"""`space bench`: how fast it is here, beside a baseline measured in the same run."""

import typer


def make_app() -> typer.Typer:
    """Assemble the commands."""
    return typer.Typer(name="bench", help="Measure this installation.", no_args_is_help=True)

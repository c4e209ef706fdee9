"""`space snapshot`: moments of sandboxes that last; one file a command."""

import typer

from space.cli.snapshot import delete, get, list


def make_app() -> typer.Typer:
    """Assemble the commands."""
    app = typer.Typer(
        name="snapshot", help="Find and delete snapshots; `space sandbox snapshot` takes them.", no_args_is_help=True
    )
    for module in (list, get, delete):
        module.register(app)
    return app

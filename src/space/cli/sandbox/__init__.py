"""`space sandbox`: sandboxes that stay; one file a command."""

import typer

from space.cli.sandbox import cp, create, delete, events, exec, extend, fork, get, list, snapshot, transition


def make_app() -> typer.Typer:
    """Assemble the commands."""
    app = typer.Typer(name="sandbox", help="Make, use and delete sandboxes.", no_args_is_help=True)
    for module in (create, list, get, delete, exec, cp, transition, fork, snapshot, extend, events):
        module.register(app)
    return app

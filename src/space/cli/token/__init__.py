"""`space token`: tokens for programs; one file a command."""

import typer

from space.cli.token import create, list, revoke


def make_app() -> typer.Typer:
    """Assemble the commands."""
    app = typer.Typer(name="token", help="Make and revoke tokens for programs.", no_args_is_help=True)
    for module in (create, list, revoke):
        module.register(app)
    return app

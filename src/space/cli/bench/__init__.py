"""`space bench`: how fast it is here, beside a baseline measured in the same run, alternating with it.

What runs alone on a machine says little about another machine; a ratio to something bare does.
"""

import typer

from space.cli.bench import api, burst, command, create, density, fork, output, suspend, wake


def make_app() -> typer.Typer:
    """Assemble the commands."""
    app = typer.Typer(name="bench", help="Measure this installation beside a bare baseline.", no_args_is_help=True)
    for module in (create, burst, command, output, suspend, wake, fork, density, api):
        module.register(app)
    return app

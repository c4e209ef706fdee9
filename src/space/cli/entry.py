"""The tree of commands, and what becomes of their failures."""

import os
import sys
import types
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from space.cli import (
    bench,
    configuration,
    doctor,
    down,
    failure,
    login,
    pool,
    run,
    sandbox,
    snapshot,
    status,
    token,
    up,
)

HELP = """Run untrusted code in isolated sandboxes.

`space up` starts a server on this machine, `space run -- COMMAND` runs something in a sandbox of its own.
Which server and token: SPACE_API_URL and SPACE_API_TOKEN, else `space login`, else the server of this machine.
"""


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        import space

        typer.echo(f"space {space.__version__}")
        raise typer.Exit


def make_app() -> typer.Typer:
    """Assemble the commands."""
    app = typer.Typer(
        name="space",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=HELP)(_options)
    for module in (up, down, status, doctor, configuration, run, login):
        module.register(app)
    for group in (sandbox, snapshot, pool, token, bench):
        app.add_typer(group.make_app())
    return app


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Take the options that belong to no command."""


def enter(arguments: Sequence[str]) -> int:
    """Run one command line; return the exit code.  No failure shows a traceback unless `SPACE_DEBUG` is set."""
    _skip_httpx_command_line()
    try:
        make_app()(args=list(arguments), prog_name="space")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the interpreter's last flush does not fail too
        return 141
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if os.environ.get("SPACE_DEBUG"):
            raise
        return failure.tell(error, as_json=failure.wants_json(arguments))
    return 0


def _skip_httpx_command_line() -> None:
    """Keep `import httpx` from importing httpx's own command line, with all of rich and pygments: half of its time.

    This can go once httpx imports `httpx._main` lazily.
    """
    if "httpx" in sys.modules:
        return

    def main(*_: Any) -> None:
        raise RuntimeError("httpx's command line is not available here")

    module = types.ModuleType("httpx._main")
    module.__dict__["main"] = main
    sys.modules["httpx._main"] = module

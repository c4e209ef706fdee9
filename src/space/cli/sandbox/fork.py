"""`space sandbox fork`."""

from typing import Annotated, Any

import typer

from space.cli import failure
from space.cli.connection import connect
from space.cli.output import Format, OutputOption, print_json
from space.cli.pairs import parse_pairs
from space.cli.progress import Progress

EXAMPLES = """**Examples**

`space sandbox fork ID`

`space sandbox fork --count 10 -m try=1 ID | xargs -I{} space sandbox exec --no-stdin {} -- ./attempt.sh`
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("fork", epilog=EXAMPLES)(fork)


def fork(
    sandbox_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The sandboxes to fork.")],
    count: Annotated[int, typer.Option("--count", "-n", help="Children of each.", min=1, max=100)] = 1,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", help="KEY=VALUE, or KEY to pass it on; replaces the source's.")
    ] = None,
    metadata: Annotated[
        list[str] | None, typer.Option("--metadata", "-m", help="KEY=VALUE; replaces the source's.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Return once the children run.")] = True,
    timeout: Annotated[float, typer.Option(help="Stop waiting after so many seconds; they go on.", min=1)] = 300,
    output: OutputOption = Format.TABLE,
) -> None:
    """Make children that go on from where a sandbox is, with its memory, processes and files; print their ids.

    The source stays as it is. A child that could not be made is an error of its own, and makes the exit code 1.
    """
    from space.sdk import Sandbox, SpaceError

    as_json = output is Format.JSON
    chosen = {
        "metadata": parse_pairs(metadata, "--metadata") if metadata else None,
        "env": parse_pairs(env, "--env", inherit=True) if env else None,
    }
    made: list[dict[str, Any]] = []
    code = 0
    with connect() as client:
        for sandbox_id in sandbox_ids:
            progress = Progress(is_quiet=as_json)
            try:
                source = Sandbox.connect(sandbox_id, client=client)
                children = source.fork(count, wait=wait, timeout=timeout, watch=progress, **chosen)
            except SpaceError as error:
                code = failure.tell(error, as_json=as_json)
                continue
            finally:
                progress.clear()
            for child in children:
                if isinstance(child, SpaceError):
                    code = failure.FAILED if as_json else failure.tell(child, as_json=False)
                    made.append({"source": sandbox_id, "error": failure.describe(child)[0]})
                else:
                    made.append({"source": sandbox_id, "sandbox": dict(child.info.raw)})
                    if not as_json:
                        print(child.id, flush=True)
    if as_json:
        print_json({"children": made})
    raise typer.Exit(code)

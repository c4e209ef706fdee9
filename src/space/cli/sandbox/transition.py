"""`space sandbox pause`, `suspend`, `wake`, `recover`: four words, one way."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from space.cli import failure
from space.cli.connection import connect
from space.cli.output import Format, OutputOption, print_json
from space.cli.progress import Progress

if TYPE_CHECKING:
    from space.sdk import Client, Operation

Sandboxes = Annotated[list[str], typer.Argument(metavar="ID...", help="The sandboxes.")]
Wait = Annotated[bool, typer.Option(help="Return once it is so.")]
Timeout = Annotated[float, typer.Option(help="Stop waiting after so many seconds; the change goes on.", min=1)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("pause", epilog="**Example**\n\n`space sandbox pause ID`")(pause)
    app.command("suspend", epilog="**Example**\n\n`space sandbox suspend $(space sandbox list | cut -f1)`")(suspend)
    app.command("wake", epilog="**Example**\n\n`space sandbox wake ID && space sandbox exec ID -- uptime`")(wake)
    app.command(
        "recover", epilog="**Example**\n\n`space sandbox list --state failed`, then `space sandbox recover ID`"
    )(recover)


def pause(
    sandbox_ids: Sandboxes, wait: Wait = True, timeout: Timeout = 120, output: OutputOption = Format.TABLE
) -> None:
    """Stop the processors of sandboxes. Memory stays on the node: quick, but lost if the node is."""
    _change("pause", sandbox_ids, wait=wait, timeout=timeout, output=output)


def suspend(
    sandbox_ids: Sandboxes, wait: Wait = True, timeout: Timeout = 120, output: OutputOption = Format.TABLE
) -> None:
    """Save sandboxes durably, with memory, processes and files, and free their machines."""
    _change("suspend", sandbox_ids, wait=wait, timeout=timeout, output=output)


def wake(
    sandbox_ids: Sandboxes, wait: Wait = True, timeout: Timeout = 120, output: OutputOption = Format.TABLE
) -> None:
    """Let paused or suspended sandboxes go on where they stopped."""
    _change("wake", sandbox_ids, wait=wait, timeout=timeout, output=output)


def recover(
    sandbox_ids: Sandboxes, wait: Wait = True, timeout: Timeout = 120, output: OutputOption = Format.TABLE
) -> None:
    """Bring failed sandboxes back from their last durable state; what happened after it is lost."""
    _change("recover", sandbox_ids, wait=wait, timeout=timeout, output=output)


def _change(kind: str, sandbox_ids: list[str], *, wait: bool, timeout: float, output: Format) -> None:
    """Begin all changes, then wait for each; go on after a failure, and say so with the exit code."""
    from space.sdk import SpaceError

    as_json = output is Format.JSON
    ended: list[dict[str, Any]] = []
    code = 0
    with connect() as client:
        begun: list[tuple[str, Operation]] = []
        for sandbox_id in sandbox_ids:
            try:
                begun.append((sandbox_id, client.change_sandbox(sandbox_id, kind)))
            except SpaceError as error:
                code = failure.tell(error, as_json=as_json)
        for sandbox_id, operation in begun:
            try:
                done = _waited(client, operation, timeout, is_quiet=as_json) if wait else operation
            except SpaceError as error:
                code = failure.tell(error, as_json=as_json)
                continue
            ended.append(dict(done.raw))
            if not as_json:
                print(sandbox_id, flush=True)
    if as_json:
        print_json({"operations": ended})
    raise typer.Exit(code)


def _waited(client: "Client", operation: "Operation", timeout: float, *, is_quiet: bool) -> "Operation":
    progress = Progress(is_quiet=is_quiet)
    try:
        return client.wait(operation, timeout=timeout, watch=progress)
    finally:
        progress.clear()

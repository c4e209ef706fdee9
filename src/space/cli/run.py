"""`space run`: a sandbox for one command."""

import time
from typing import Annotated, Any

import typer

from space.cli import failure, terminal
from space.cli.connection import connect
from space.cli.interruption import Interrupted, Interruption
from space.cli.output import Format, OutputOption, print_json
from space.cli.pairs import parse_pairs

EXAMPLES = """**Examples**

`space run -- python3 -c 'print(6*7)'`

`space run --env TOKEN=abc --timeout 60 -- sh -c 'echo $TOKEN'`

`tar c src | space run -- tar t`

`space run -t -- bash`
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run", epilog=EXAMPLES, no_args_is_help=True, context_settings={"allow_interspersed_args": False})(run)


def run(
    argv: Annotated[list[str], typer.Argument(metavar="ARGV...", help="The program and its arguments, after `--`.")],
    template: Annotated[str, typer.Option("--template", "-T", help="What the sandbox starts from.")] = "base",
    runtime: Annotated[str | None, typer.Option(help="Isolation to use; `space doctor` lists them.")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="KEY=VALUE, or KEY to pass it on.")] = None,
    cwd: Annotated[str | None, typer.Option("--cwd", "-w", help="Directory to run in.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="User to run as.")] = None,
    memory: Annotated[int | None, typer.Option(help="Memory in MiB.")] = None,
    vcpus: Annotated[int | None, typer.Option(help="Virtual CPUs.")] = None,
    disk: Annotated[int | None, typer.Option(help="Disk in MiB.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Kill the command after so many seconds.", min=0.001)] = None,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give it a terminal.")] = False,
    stdin: Annotated[
        bool | None, typer.Option("--stdin/--no-stdin", help="Forward stdin; default: unless it is a terminal.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the sandbox afterwards.")] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Run a command in a sandbox of its own, show its output, exit with its code.

    Ctrl-C kills it and deletes the sandbox; a second one leaves at once. A restart of the server does not disturb it.
    Exit code 125 means that SPACE failed, 128+N that signal N ended the command.
    """
    settings = {
        "runtime": runtime,
        "memory_mib": memory,
        "vcpus": vcpus,
        "disk_mib": disk,
    }
    command = {"env": parse_pairs(env, "--env", inherit=True), "cwd": cwd, "user": user, "timeout": timeout}
    try:
        code = _run(argv, template, settings, command, tty=tty, stdin=stdin, keep=keep, output=output)
    except Exception as error:
        code = failure.tell(error, as_json=output is Format.JSON, exit_code=_code_of(error))
    raise typer.Exit(code)


def _run(
    argv: list[str],
    template: str,
    settings: dict[str, Any],
    command: dict[str, Any],
    *,
    tty: bool,
    stdin: bool | None,
    keep: bool,
    output: Format,
) -> int:
    from space.sdk import Command, Sandbox

    began = time.monotonic()
    forwards = (tty or terminal.has_stdin_to_forward()) if stdin is None else stdin
    with connect() as client, Interruption() as interruption:
        sandbox: Sandbox | None = None
        started: Command | None = None
        try:
            with interruption.deferred():
                sandbox = Sandbox.create(template, wait=False, client=client, **settings)
            sandbox.wait_running()
            created = time.monotonic()
            started = sandbox.start(argv, stdin=forwards and not tty, pty=terminal.size() if tty else None, **command)
            if output is Format.JSON:
                return _collect(sandbox.id, started, began, created)
            from space.cli.follow import follow

            return follow(started, program=argv[0], forwards_stdin=forwards, is_terminal=tty)
        except Interrupted as interrupted:
            return interrupted.exit_code
        except BrokenPipeError:
            return 141
        finally:
            if sandbox is not None:
                with interruption.ignored():
                    _leave(sandbox, started, keep=keep)


def _collect(sandbox_id: str, command: Any, began: float, created: float) -> int:
    from space.cli.follow import exit_code_of
    from space.cli.result import result_object

    result = command.output()
    print_json(
        {
            "sandbox_id": sandbox_id,
            "process_id": command.process_id,
            **result_object(result),
            "create_ms": round((created - began) * 1000, 1),
            "total_ms": round((time.monotonic() - began) * 1000, 1),
        }
    )
    return exit_code_of(command.exit)


def _leave(sandbox: Any, command: Any, *, keep: bool) -> None:
    """Delete the sandbox, and with it the command; a sandbox that is kept loses only a command that still runs."""
    from space.sdk import SpaceError

    try:
        if not keep:
            sandbox.kill(wait=False)
            return
        if command is not None and command.exit is None:
            command.kill()
        terminal.note(f"kept {sandbox.id}: `space sandbox exec {sandbox.id} -- COMMAND` runs more in it")
    except SpaceError as error:
        terminal.note(f"could not clean up: {error}; try `space sandbox delete {sandbox.id}`")


def _code_of(error: Exception) -> int:
    return error.exit_code if isinstance(error, failure.CommandError) else failure.NOT_RUN

"""`space sandbox exec`."""

from typing import Annotated, Any

import typer

from space.cli import failure, terminal
from space.cli.connection import connect
from space.cli.interruption import Interrupted, Interruption
from space.cli.output import Format, OutputOption, print_json
from space.cli.pairs import parse_pairs

EXAMPLES = "**Examples**\n\n`space sandbox exec ID -- ls -l`\n\n`space sandbox exec -t ID -- bash`"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("exec", epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})(exec_command)


def exec_command(
    sandbox_id: Annotated[str, typer.Argument(metavar="ID", help="The sandbox.")],
    argv: Annotated[list[str], typer.Argument(metavar="ARGV...", help="The program and its arguments, after `--`.")],
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="KEY=VALUE, or KEY to pass it on.")] = None,
    cwd: Annotated[str | None, typer.Option("--cwd", "-w", help="Directory to run in.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="User to run as.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Kill the command after so many seconds.", min=0.001)] = None,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give it a terminal.")] = False,
    stdin: Annotated[
        bool | None, typer.Option("--stdin/--no-stdin", help="Forward stdin; default: unless it is a terminal.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start it and print the process's id.")] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Run a command in a sandbox that exists, show its output, exit with its code. Ctrl-C kills the command."""
    from space.cli.follow import exit_code_of, follow
    from space.cli.result import result_object
    from space.sdk import Sandbox, SpaceError

    if argv[:1] == ["--"]:  # click keeps it where it stops looking for options: behind ID
        argv = argv[1:]
    forwards = not detach and ((tty or terminal.has_stdin_to_forward()) if stdin is None else stdin)
    options: dict[str, Any] = {
        "env": parse_pairs(env, "--env", inherit=True),
        "cwd": cwd,
        "user": user,
        "timeout": timeout,
    }
    as_json = output is Format.JSON
    try:
        with connect() as client, Interruption() as interruption:
            sandbox = Sandbox.connect(sandbox_id, client=client)
            pty = terminal.size() if tty else None
            command = sandbox.start(argv, stdin=forwards and not tty, pty=pty, detached=detach, **options)
            if detach:
                started = {"process_id": command.process_id, "session_id": command.session_id}
                print_json(started) if as_json else print(command.process_id)
                raise typer.Exit
            try:
                if as_json:
                    print_json(result_object(command.output()))
                    code = exit_code_of(command.exit) if command.exit else failure.NOT_RUN
                else:
                    code = follow(command, program=argv[0], forwards_stdin=forwards, is_terminal=tty)
            except (Interrupted, BrokenPipeError) as stopped:
                with interruption.ignored():
                    command.kill()
                code = getattr(stopped, "exit_code", 141)
    except Interrupted as interrupted:
        code = interrupted.exit_code
    except SpaceError as error:
        code = failure.tell(error, as_json=as_json, exit_code=failure.NOT_RUN)
    raise typer.Exit(code)

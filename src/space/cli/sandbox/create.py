"""`space sandbox create`."""

from typing import Annotated

import typer

from space.cli.connection import connect
from space.cli.output import Format, OutputOption, print_json
from space.cli.pairs import parse_pairs


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("create", epilog="**Example**\n\n`space sandbox create --metadata task=42 --memory 1024`")(create)


def create(
    template: Annotated[str, typer.Option("--template", "-T", help="What the sandbox starts from.")] = "base",
    runtime: Annotated[str | None, typer.Option(help="Isolation to use; `space doctor` lists them.")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="KEY=VALUE, or KEY to pass it on.")] = None,
    metadata: Annotated[list[str] | None, typer.Option("--metadata", "-m", help="KEY=VALUE, to find it by.")] = None,
    memory: Annotated[int | None, typer.Option(help="Memory in MiB.")] = None,
    vcpus: Annotated[int | None, typer.Option(help="Virtual CPUs.")] = None,
    disk: Annotated[int | None, typer.Option(help="Disk in MiB.")] = None,
    lifetime: Annotated[int | None, typer.Option(help="Delete it after so many seconds, whatever it does.")] = None,
    wait: Annotated[bool, typer.Option(help="Return once it runs.")] = True,
    output: OutputOption = Format.TABLE,
) -> None:
    """Create a sandbox that stays until it is deleted; print its id."""
    from space.sdk import Sandbox

    with connect() as client:
        sandbox = Sandbox.create(
            template,
            runtime=runtime,
            vcpus=vcpus,
            memory_mib=memory,
            disk_mib=disk,
            env=parse_pairs(env, "--env", inherit=True),
            metadata=parse_pairs(metadata, "--metadata"),
            auto_lifecycle=None if lifetime is None else {"max_lifetime_seconds": lifetime},
            wait=wait,
            client=client,
        )
    if output is Format.JSON:
        print_json(dict(sandbox.info.raw))
    else:
        print(sandbox.id)

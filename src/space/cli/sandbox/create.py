"""`space sandbox create`."""

from typing import Annotated, Any

import typer

from space.cli.connection import connect
from space.cli.durations import parse_duration
from space.cli.output import Format, OutputOption, print_json
from space.cli.pairs import parse_pairs

EXAMPLES = """**Examples**

`space sandbox create --metadata task=42 --memory 1024`

`space sandbox create --idle 10m --on-idle suspend --wake-on-request`

`space sandbox create --template snp…`
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("create", epilog=EXAMPLES)(create)


def create(
    template: Annotated[str, typer.Option("--template", "-T", help="A template's name, or a snapshot's id.")] = "base",
    runtime: Annotated[str | None, typer.Option(help="Isolation to use; `space doctor` lists them.")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="KEY=VALUE, or KEY to pass it on.")] = None,
    metadata: Annotated[list[str] | None, typer.Option("--metadata", "-m", help="KEY=VALUE, to find it by.")] = None,
    memory: Annotated[int | None, typer.Option(help="Memory in MiB.")] = None,
    vcpus: Annotated[int | None, typer.Option(help="Virtual CPUs.")] = None,
    disk: Annotated[int | None, typer.Option(help="Disk in MiB.")] = None,
    lifetime: Annotated[int | None, typer.Option(help="Delete it after so many seconds, whatever it does.")] = None,
    idle: Annotated[
        str | None, typer.Option(help="Once nobody has used it for so long, such as 10m (6h unless told otherwise) …")
    ] = None,
    on_idle: Annotated[str | None, typer.Option(help="… `pause`, `suspend` (the default), `delete` or `none`.")] = None,
    wake_on_request: Annotated[
        bool, typer.Option("--wake-on-request", help="A command, file or stream that needs it awake wakes it.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Return once it runs.")] = True,
    output: OutputOption = Format.TABLE,
) -> None:
    """Create a sandbox that stays until it is deleted; print its id."""
    from space.sdk import Sandbox

    life: dict[str, Any] = {}
    if lifetime is not None:
        life["max_lifetime_seconds"] = lifetime
    if idle is not None:
        life["idle_seconds"] = int(parse_duration(idle, option="--idle").total_seconds())
    if on_idle is not None:
        life["on_idle"] = on_idle
    if wake_on_request:
        life["wake_on_request"] = True
    with connect() as client:
        sandbox = Sandbox.create(
            template,
            runtime=runtime,
            vcpus=vcpus,
            memory_mib=memory,
            disk_mib=disk,
            env=parse_pairs(env, "--env", inherit=True),
            metadata=parse_pairs(metadata, "--metadata"),
            auto_lifecycle=life or None,
            wait=wait,
            client=client,
        )
    if output is Format.JSON:
        print_json(dict(sandbox.info.raw))
    else:
        print(sandbox.id)

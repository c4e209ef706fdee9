"""`space bench wake`: a suspended sandbox, whose moment is still on its node's disk, until it runs."""

import time
from contextlib import ExitStack
from typing import Annotated

import typer

from space.cli.bench.options import CheckOption, JsonOption, MemoryOption, RuntimeOption
from space.cli.connection import connect


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("wake")(wake)


def wake(
    n: Annotated[int, typer.Option("--n", help="How many times.", min=1)] = 20,
    memory: MemoryOption = 256,
    runtime: RuntimeOption = None,
    as_json: JsonOption = False,
    check: CheckOption = False,
) -> None:
    """Suspend a sandbox, then wake it: from the request until it is shown as running, with its own identity.

    The baseline is `runsc restore` of an idle machine of the same template and size with the same flags, to the answer
    of its agent.
    """
    from space.cli.bench.bare import Bare
    from space.cli.bench.changes import change
    from space.cli.bench.report import Budget, Measurement, percentile, ratio, show
    from space.sdk import Sandbox

    waking: list[float] = []
    command: list[float] = []
    restore: list[float] = []
    with ExitStack() as stack:
        client = stack.enter_context(connect())
        bare = Bare(stack, memory_mib=memory)
        sandbox = stack.enter_context(Sandbox.create(runtime=runtime, memory_mib=memory, client=client))
        sandbox.exec(["true"])
        for number in range(n + 1):  # the first warms caches
            change(client, sandbox.id, "suspend")
            base = bare.samples("restore")
            began = time.perf_counter()
            change(client, sandbox.id, "wake")
            woken = time.perf_counter()
            sandbox.exec(["true"])
            ended = time.perf_counter()
            if number:
                waking.append((woken - began) * 1000)
                command.append((ended - woken) * 1000)
                restore += base
    show(
        Measurement(
            name="wake",
            runtime=sandbox.info.runtime,
            samples=waking,
            baseline=bare.baseline(
                "runsc restore of an idle machine of the same template and size, to the agent's answer"
            ),
            baseline_samples=restore,
            extra={"first_command_p50_ms": percentile(command, 50)},
            budgets=(Budget("wake, against bare", ratio(percentile(waking, 50), percentile(restore, 50)), 1.3, "x"),),
            notes=bare.notes,
        ),
        as_json=as_json,
        check=check,
    )

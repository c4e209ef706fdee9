"""`space bench fork`: children of a running sandbox."""

import time
from contextlib import ExitStack
from typing import Annotated

import typer

from space.cli.bench.options import CheckOption, JsonOption, MemoryOption, RuntimeOption
from space.cli.connection import connect


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("fork")(fork)


def fork(
    n: Annotated[int, typer.Option("--n", help="How many forks.", min=1)] = 5,
    children: Annotated[int, typer.Option("--children", help="Children of each fork.", min=1)] = 10,
    memory: MemoryOption = 256,
    runtime: RuntimeOption = None,
    as_json: JsonOption = False,
    check: CheckOption = False,
) -> None:
    """Fork a sandbox: from the request until all children run, for each child; deleting them is not counted.

    The baseline is as many `runsc restore` at once of an idle machine, until all agents have answered, for each.
    """
    from space.cli.bench.bare import Bare
    from space.cli.bench.changes import WAIT, ended
    from space.cli.bench.report import Measurement, percentile, show
    from space.cli.failure import CommandError
    from space.sdk import Sandbox

    each: list[float] = []
    checkpoint: list[float] = []
    restore: list[float] = []
    with ExitStack() as stack:
        client = stack.enter_context(connect())
        bare = Bare(stack, memory_mib=memory)
        sandbox = stack.enter_context(Sandbox.create(runtime=runtime, memory_mib=memory, client=client))
        sandbox.exec(["true"])
        path = f"/v1/sandboxes/{sandbox.id}/fork"
        for number in range(n + 1):  # the first warms caches
            base = bare.samples("burst", count=children)
            began = time.perf_counter()
            answer = client.transport.request("POST", path, json={"count": children}, headers=WAIT).json()
            made = [child for child in answer["children"] if "operation" in child]
            if len(made) < children:
                raise CommandError(f"only {len(made)} of {children} children were made: {answer['children'][-1]}")
            forking = ended(client, answer["operation"])
            for child in made:
                ended(client, child["operation"])
            took = (time.perf_counter() - began) * 1000
            for operation in [client.delete_sandbox(child["sandbox"]["id"]) for child in made]:
                client.wait(operation, timeout=60)
            if number:
                each.append(took / children)
                checkpoint += [value] if (value := forking["progress"]["checkpoint_ms"]) is not None else []
                restore += [max(base) / children] if base else []
    show(
        Measurement(
            name="fork",
            runtime=sandbox.info.runtime,
            samples=each,
            baseline=bare.baseline(f"{children} runsc restore at once, until all agents have answered, for each"),
            baseline_samples=restore,
            extra={
                "children": children,
                "total_p50_ms": percentile([value * children for value in each], 50),
                "checkpoint_p50_ms": percentile(checkpoint, 50),
            },
            notes=bare.notes,
        ),
        as_json=as_json,
        check=check,
    )

"""`space bench suspend`: a running sandbox until its moment is durable."""

import time
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from space.cli.bench.options import CheckOption, JsonOption, MemoryOption, RuntimeOption
from space.cli.connection import connect


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("suspend")(suspend)


def suspend(
    n: Annotated[int, typer.Option("--n", help="How many times.", min=1)] = 20,
    memory: MemoryOption = 256,
    runtime: RuntimeOption = None,
    as_json: JsonOption = False,
    check: CheckOption = False,
) -> None:
    """Suspend a sandbox again and again.

    What is compared is the time in which the sandbox stands still, as its operation tells it: from the moment at which
    its agent is left alone until the checkpoint's files are synced.  The total, from the request until the snapshot is
    published in the object store, is shown beside it.  The baseline is `runsc checkpoint` of an idle machine of the
    same template and size, which goes on, as here, and whose files are not synced.
    """
    from space.cli.bench.bare import Bare
    from space.cli.bench.changes import change
    from space.cli.bench.report import Budget, Measurement, percentile, ratio, show
    from space.sdk import Sandbox

    still: list[float] = []
    total: list[float] = []
    checkpoint: list[float] = []
    progress: dict[str, Any] = {}
    with ExitStack() as stack:
        client = stack.enter_context(connect())
        bare = Bare(stack, memory_mib=memory)
        sandbox = stack.enter_context(Sandbox.create(runtime=runtime, memory_mib=memory, client=client))
        sandbox.exec(["true"])
        for number in range(n + 1):  # the first uploads everything
            base = bare.samples("checkpoint")
            began = time.perf_counter()
            operation = change(client, sandbox.id, "suspend")
            took = (time.perf_counter() - began) * 1000
            change(client, sandbox.id, "wake")
            if number:
                progress = operation["progress"] or {}
                total.append(took)
                still += [progress["checkpoint_ms"]] if progress.get("checkpoint_ms") is not None else []
                checkpoint += base
    show(
        Measurement(
            name="suspend",
            runtime=sandbox.info.runtime,
            samples=still,
            baseline=bare.baseline("runsc checkpoint -compression=none -leave-running of an idle machine"),
            baseline_samples=checkpoint,
            extra={
                "total_p50_ms": percentile(total, 50),
                "total_p95_ms": percentile(total, 95),
                **{name: progress.get(name) for name in ("bytes_read", "bytes_new", "bytes_uploaded")},
            },
            budgets=(
                Budget("suspend, against bare", ratio(percentile(still, 50), percentile(checkpoint, 50)), 1.3, "x"),
            ),
            notes=bare.notes,
        ),
        as_json=as_json,
        check=check,
    )

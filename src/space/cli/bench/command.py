"""`space bench command`: the round trip of a command in a warm sandbox."""

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from space.cli.bench.options import CheckOption, JsonOption, RuntimeOption
from space.cli.connection import connect

if TYPE_CHECKING:
    from space.sdk import Sandbox

BATCH = 10
#: Runs inside the sandbox and prints how long each `posix_spawn` and wait took, in milliseconds.
SPAWNER = """
import json, os, sys, time
times = []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    os.waitpid(os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ), 0)
    times.append((time.perf_counter() - began) * 1000)
print(json.dumps(times))
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("command")(command)


def command(
    n: Annotated[int, typer.Option("--n", help="How many commands of each kind.", min=1)] = 100,
    runtime: RuntimeOption = None,
    as_json: JsonOption = False,
    check: CheckOption = False,
) -> None:
    """Run `true`, and `python3 -c pass`, through the API in a warm sandbox.

    The baseline is posix_spawn and wait of the same program by a program inside the same sandbox.
    """
    from space.cli.bench.report import Budget, Measurement, percentile, ratio, show
    from space.sdk import Sandbox

    with connect() as client, Sandbox.create(runtime=runtime, client=client) as sandbox:
        true, bare_true = _measure(sandbox, ["true"], n)
        python, bare_python = _measure(sandbox, ["python3", "-c", "pass"], n)
    against = ratio(percentile(true, 50), percentile(bare_true, 50))
    show(
        Measurement(
            name="command",
            runtime=sandbox.info.runtime,
            samples=true,
            baseline="posix_spawn and wait of `true` by a program in the same sandbox",
            baseline_samples=bare_true,
            extra={
                "python_p50_ms": percentile(python, 50),
                "python_p95_ms": percentile(python, 95),
                "python_baseline_p50_ms": percentile(bare_python, 50),
                "python_ratio": ratio(percentile(python, 50), percentile(bare_python, 50)),
            },
            budgets=(Budget("round trip of `true`, against bare", against, 1.5, "x"),),
        ),
        as_json=as_json,
        check=check,
    )


def _measure(sandbox: "Sandbox", argv: Sequence[str], n: int) -> tuple[list[float], list[float]]:
    """Return both kinds of samples, taken in turns of ten."""
    sandbox.exec(argv)
    _bare(sandbox, argv, 1)
    samples: list[float] = []
    bare: list[float] = []
    while len(samples) < n:
        count = min(BATCH, n - len(samples))
        bare += _bare(sandbox, argv, count)
        for _ in range(count):
            began = time.perf_counter()
            sandbox.exec(argv)
            samples.append((time.perf_counter() - began) * 1000)
    return samples, bare


def _bare(sandbox: "Sandbox", argv: Sequence[str], count: int) -> list[Any]:
    result = sandbox.exec(["python3", "-c", SPAWNER, str(count), *argv])
    return list(json.loads(result.stdout))

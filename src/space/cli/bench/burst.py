"""`space bench burst`: many creates at the same moment."""

import asyncio
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from space.cli.bench.options import CheckOption, JsonOption, MemoryOption, RuntimeOption
from space.cli.connection import connect

if TYPE_CHECKING:
    from space.sdk.settings import ClientSettings

SIZE, BUDGET_MS = 20, 200.0  #: the burst that DESIGN §10 gives a budget


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("burst")(burst)


def burst(
    n: Annotated[int, typer.Option("--n", help="How many bursts.", min=1)] = 5,
    size: Annotated[int, typer.Option("--size", help="Creates of one burst, and machines of the pool.", min=1)] = SIZE,
    memory: MemoryOption = 256,
    runtime: RuntimeOption = None,
    as_json: JsonOption = False,
    check: CheckOption = False,
) -> None:
    """Create as many sandboxes at once as a warm pool has machines, and run `true` in each.

    Counted from the beginning of the burst, for each sandbox; deleting them and refilling the pool is not counted.  The
    baseline is as many `runsc restore` at once, to the answer of each agent.
    """
    from space.cli.bench.bare import Bare
    from space.cli.bench.report import Budget, Measurement, percentile, show
    from space.cli.bench.warm import WarmPool

    creating: list[float] = []
    total: list[float] = []
    restore: list[float] = []
    with ExitStack() as stack:
        client = stack.enter_context(connect())
        bare = Bare(stack, memory_mib=memory)
        warm = stack.enter_context(WarmPool(client, size, memory_mib=memory, runtime=runtime))
        warm.fill()
        asyncio.run(_burst(client.transport.settings, size, memory, runtime))
        bare.samples("burst", count=size)
        before = warm.status()["hits"]
        for _ in range(n):
            restore += bare.samples("burst", count=size)
            warm.fill()
            for created, ended in asyncio.run(_burst(client.transport.settings, size, memory, runtime)):
                creating.append(created)
                total.append(ended)
        hits = warm.status()["hits"] - before
    show(
        Measurement(
            name="burst",
            runtime=warm.runtime,
            samples=total,
            baseline=bare.baseline(f"{size} runsc restore at once of an idle machine, to the answer of each agent"),
            baseline_samples=restore,
            extra={
                "size": size,
                "create_p50_ms": percentile(creating, 50),
                "create_p95_ms": percentile(creating, 95),
                "baseline_p95_ms": percentile(restore, 95),
                "hits": hits,
            },
            budgets=(
                Budget("create + first command, p95", percentile(total, 95), BUDGET_MS, "ms"),
                Budget("creates that found a machine ready", hits / (n * size), 1, at_least=True),
            )[0 if size == SIZE else 1 :],
            notes=bare.notes,
        ),
        as_json=as_json,
        check=check,
    )


async def _burst(settings: "ClientSettings", size: int, memory: int, runtime: str | None) -> list[tuple[float, float]]:
    """Return for each create when it was done, and when its command was, in milliseconds from the beginning."""
    from space.cli.bench.caller import Caller

    wanted = {
        "template": "base",
        "resources": {"memory_mib": memory},
        "metadata": {"space-bench": "burst"},
        **({"runtime": runtime} if runtime else {}),
    }
    callers = [await Caller(settings.api_url, settings.token or "").open() for _ in range(size)]
    try:
        began = time.perf_counter()

        async def one(caller: Caller) -> tuple[float, float, str]:
            answer = await caller.post("/v1/sandboxes", wanted, prefer="wait=60")
            sandbox_id, created = answer["sandbox"]["id"], time.perf_counter()
            await caller.post(f"/v1/sandboxes/{sandbox_id}/exec", {"argv": ["true"]})
            return (created - began) * 1000, (time.perf_counter() - began) * 1000, sandbox_id

        found = await asyncio.gather(*(one(caller) for caller in callers))
        await asyncio.gather(
            *(
                caller.delete(f"/v1/sandboxes/{sandbox_id}", prefer="wait=60")
                for caller, (_, _, sandbox_id) in zip(callers, found, strict=True)
            )
        )
    finally:
        for caller in callers:
            caller.close()
    return [(created, ended) for created, ended, _ in found]

"""`space bench create`: from nothing to the end of the first command."""

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from space.cli.bench.options import CheckOption, JsonOption, MemoryOption, RuntimeOption
from space.cli.connection import connect

if TYPE_CHECKING:
    from space.sdk import Client

POOL = 20  #: machines of the pool that `--pool` measures
#: For a node to make the image of a template that it has booted: it begins once nothing has been starting for a while.
IMAGE_SECONDS = 8.0

RESTORE = "runsc restore of an idle machine of the same template and size, to the agent's answer"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("create")(create)


def create(
    n: Annotated[
        int | None, typer.Option("--n", help="How many sandboxes; default 20, with --pool 100.", min=1)
    ] = None,
    pool: Annotated[bool, typer.Option("--pool", help="From a warm pool of 20, refilled between runs.")] = False,
    memory: MemoryOption = 256,
    runtime: RuntimeOption = None,
    as_json: JsonOption = False,
    check: CheckOption = False,
) -> None:
    """Create a sandbox and run `true` in it; deleting it is not counted, nor is refilling the pool.

    Without --pool a machine starts from the image of its booted template, which the first create makes the node save.
    The baseline is `runsc restore` of such an image with the same flags until the agent inside answers, the fastest
    start that the runtime has by itself. It needs root on the server's machine; elsewhere there is none.  The control
    plane's share is a create on a temporary server whose node starts or binds machines in no time: HTTP, commit, call,
    commit.
    """
    if pool:
        _pooled(n or 100, memory, runtime, as_json=as_json, check=check)
    else:
        _cold(n or 20, memory, runtime, as_json=as_json, check=check)


def _cold(n: int, memory: int, runtime: str | None, *, as_json: bool, check: bool) -> None:
    from space.cli.bench.bare import Bare
    from space.cli.bench.child import Child
    from space.cli.bench.report import Budget, Measurement, percentile, ratio, show
    from space.sdk import Client

    creating: list[float] = []
    total: list[float] = []
    share: list[float] = []
    run: list[float] = []
    restore: list[float] = []
    node: list[float] = []
    with ExitStack() as stack:
        client = stack.enter_context(connect())
        bare = Bare(stack, memory_mib=memory)
        server = stack.enter_context(Child("space.cli.bench.temporary_api")).ask()
        instant = stack.enter_context(Client(api_url=server["url"], token=server["token"]))
        _create_and_delete(instant, memory)
        used = measure_once(client, runtime, memory, [], [])  # the first of each warms caches
        for what in ("run", "restore", "node"):
            bare.samples(what)
        time.sleep(IMAGE_SECONDS)
        for _ in range(n):
            measure_once(client, runtime, memory, creating, total)
            run += bare.samples("run")
            restore += bare.samples("restore")
            node += bare.samples("node")
            share.append(_create_and_delete(instant, memory))
    share_p50 = percentile(share, 50)
    show(
        Measurement(
            name="create",
            runtime=used,
            samples=total,
            baseline=bare.baseline(RESTORE),
            baseline_samples=restore,
            extra={
                "create_p50_ms": percentile(creating, 50),
                "first_command_p50_ms": percentile([t - c for t, c in zip(total, creating, strict=True)], 50),
                "node_p50_ms": percentile(node, 50),
                "bare_run_p50_ms": percentile(run, 50),
                "control_plane_share_ms": share_p50,
            },
            budgets=(
                Budget(
                    "create + first command, against bare",
                    ratio(percentile(total, 50), percentile(restore, 50)),
                    1.3,
                    "x",
                ),
                Budget("control plane's share of a create", share_p50, 10, "ms"),
            ),
            notes=bare.notes,
        ),
        as_json=as_json,
        check=check,
    )


def _pooled(n: int, memory: int, runtime: str | None, *, as_json: bool, check: bool) -> None:
    from space.cli.bench.bare import Bare
    from space.cli.bench.child import Child
    from space.cli.bench.report import Budget, Measurement, percentile, show
    from space.cli.bench.warm import WarmPool
    from space.sdk import Client

    creating: list[float] = []
    total: list[float] = []
    share: list[float] = []
    restore: list[float] = []
    with ExitStack() as stack:
        client = stack.enter_context(connect())
        bare = Bare(stack, memory_mib=memory)
        server = stack.enter_context(Child("space.cli.bench.temporary_api")).ask()
        instant = stack.enter_context(Client(api_url=server["url"], token=server["token"]))
        theirs = stack.enter_context(WarmPool(instant, POOL, memory_mib=memory))
        warm = stack.enter_context(WarmPool(client, POOL, memory_mib=memory, runtime=runtime))
        theirs.fill()
        warm.fill()
        used = measure_once(client, runtime, memory, [], [])
        _create_and_delete(instant, memory)
        bare.samples("restore")
        hits, their_hits = warm.status()["hits"], theirs.status()["hits"]
        for _ in range(n):
            theirs.fill()
            share.append(_create_and_delete(instant, memory))
            restore += bare.samples("restore")
            warm.fill()  # last, so that nothing else goes on while it is measured
            measure_once(client, runtime, memory, creating, total)
        pool = warm.status()
        hits, their_hits = pool["hits"] - hits, theirs.status()["hits"] - their_hits
    share_p50 = percentile(share, 50)
    show(
        Measurement(
            name="create --pool",
            runtime=used,
            samples=total,
            baseline=bare.baseline(RESTORE),
            baseline_samples=restore,
            extra={
                "create_p50_ms": percentile(creating, 50),
                "create_p95_ms": percentile(creating, 95),
                "first_command_p50_ms": percentile([t - c for t, c in zip(total, creating, strict=True)], 50),
                "control_plane_share_ms": share_p50,
                "pool": POOL,
                "hits": hits,
                "refill_mean_s": pool["refill_seconds"]["mean"],
            },
            budgets=(
                Budget("create + first command, p50", percentile(total, 50), 30, "ms"),
                Budget("create + first command, p95", percentile(total, 95), 60, "ms"),
                Budget("control plane's share of a create", share_p50, 10, "ms"),
                Budget("creates that found a machine ready", hits / n, 1, at_least=True),
                Budget("the same, of those of the share", their_hits / n, 1, at_least=True),
            ),
            notes=bare.notes,
        ),
        as_json=as_json,
        check=check,
    )


def measure_once(
    client: "Client", runtime: str | None, memory: int, creating: list[float], total: list[float]
) -> str | None:
    """Create a sandbox and run `true` in it, add the milliseconds, and delete it; returns its runtime."""
    from space.sdk import Sandbox

    began = time.perf_counter()
    sandbox = Sandbox.create(runtime=runtime, memory_mib=memory, metadata={"space-bench": "create"}, client=client)
    created = time.perf_counter()
    sandbox.exec(["true"])
    ended = time.perf_counter()
    sandbox.kill()
    creating.append((created - began) * 1000)
    total.append((ended - began) * 1000)
    return sandbox.info.runtime


def _create_and_delete(client: "Client", memory: int) -> float:
    """Return how long a create took, in milliseconds."""
    from space.sdk import Sandbox

    began = time.perf_counter()
    sandbox = Sandbox.create(memory_mib=memory, client=client)
    created = time.perf_counter()
    sandbox.kill()
    return (created - began) * 1000

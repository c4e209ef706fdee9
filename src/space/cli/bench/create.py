"""`space bench create`: from nothing to the end of the first command."""

import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from space.cli.bench.options import CheckOption, JsonOption, RuntimeOption
from space.cli.connection import connect

if TYPE_CHECKING:
    from space.sdk import Client


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("create")(create)


def create(
    n: Annotated[int, typer.Option("--n", help="How many sandboxes.", min=1)] = 20,
    runtime: RuntimeOption = None,
    as_json: JsonOption = False,
    check: CheckOption = False,
) -> None:
    """Create a sandbox and run `true` in it; deleting it is not counted.

    The baseline is `runsc run` of the same template with the same flags until the agent inside answers, without any
    server. It needs root on the server's machine; elsewhere there is none.  The control plane's share is a create on
    a temporary server whose node starts machines in no time: HTTP, commit, call, commit.
    """
    from space.cli.bench.child import Child
    from space.cli.bench.report import Budget, Measurement, percentile, ratio, show
    from space.sdk import Client
    from space.sdk.settings import cli_file

    total: list[float] = []
    share: list[float] = []
    creating: list[float] = []
    bare: list[float] = []
    node: list[float] = []
    notes: list[str] = []
    with ExitStack() as stack:
        client = stack.enter_context(connect())
        child: Child | None = None
        why_not = _why_no_baseline()
        if why_not is None:
            child = stack.enter_context(Child("space.cli.bench.bare_machines", str(cli_file().parent)))
        else:
            notes.append(why_not)
        server = stack.enter_context(Child("space.cli.bench.temporary_api")).ask()
        instant = stack.enter_context(Client(api_url=server["url"], token=server["token"]))
        _create_and_delete(instant)
        used = _measure_once(client, runtime, [], [])  # the first of each warms caches, and says which runtime it is
        if child is not None:
            for what in ("bare", "node"):
                child.ask(what=what)
        for _ in range(n):
            _measure_once(client, runtime, creating, total)
            if child is not None:
                bare.append(child.ask(what="bare")["ms"])
                node.append(child.ask(what="node")["ms"])
            share.append(_create_and_delete(instant))
    share_p50 = percentile(share, 50)
    against_bare = ratio(percentile(total, 50), percentile(bare, 50))
    show(
        Measurement(
            name="create",
            runtime=used,
            samples=total,
            baseline=None if child is None else "runsc run of the same template and flags, to the agent's answer",
            baseline_samples=bare,
            extra={
                "create_p50_ms": percentile(creating, 50),
                "first_command_p50_ms": percentile([t - c for t, c in zip(total, creating, strict=True)], 50),
                "node_p50_ms": percentile(node, 50),
                "control_plane_share_ms": share_p50,
            },
            budgets=(
                Budget("create + first command, against bare", against_bare, 1.3, "x"),
                Budget("control plane's share of a create", share_p50, 10, "ms"),
            ),
            notes=notes,
        ),
        as_json=as_json,
        check=check,
    )


def _measure_once(client: "Client", runtime: str | None, creating: list[float], total: list[float]) -> str | None:
    from space.sdk import Sandbox

    began = time.perf_counter()
    sandbox = Sandbox.create(runtime=runtime, metadata={"space-bench": "create"}, client=client)
    created = time.perf_counter()
    sandbox.exec(["true"])
    ended = time.perf_counter()
    sandbox.kill()
    creating.append((created - began) * 1000)
    total.append((ended - began) * 1000)
    return sandbox.info.runtime


def _create_and_delete(client: "Client") -> float:
    """Return how long a create took, in milliseconds."""
    from space.sdk import Sandbox

    began = time.perf_counter()
    sandbox = Sandbox.create(client=client)
    created = time.perf_counter()
    sandbox.kill()
    return (created - began) * 1000


def _why_no_baseline() -> str | None:
    from space.sdk.settings import cli_file

    if os.geteuid() != 0:
        return "no baseline: it needs root"
    if not (cli_file().parent / "templates").is_dir():
        return f"no baseline: {cli_file().parent} on this machine holds no templates; set SPACE_DATA_DIR"
    return None

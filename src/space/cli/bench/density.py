"""`space bench density`: the memory of an idle sandbox, all told."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from space.cli.bench.options import CheckOption, JsonOption, MemoryOption, RuntimeOption
from space.cli.connection import connect
from space.cli.failure import CommandError

SETTLE_SECONDS = 3.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("density")(density)


def density(
    n: Annotated[int, typer.Option("--n", help="How many sandboxes.", min=1)] = 20,
    memory: MemoryOption = 256,
    runtime: RuntimeOption = None,
    as_json: JsonOption = False,
    check: CheckOption = False,
) -> None:
    """Create sandboxes, run `true` in each, let them rest, and add up what their processes use.

    Of each its kernel, file server and stubs, and its share of what the server grew by, as proportional set size, in
    which a page that several processes have counts as a share.  Needs root on the server's machine.  The baseline is an
    idle machine that runsc runs by itself, to whose agent nobody is connected.
    """
    from space.cli.bench.bare import Bare, data_dir
    from space.cli.bench.memory import pss_mib, server_pid
    from space.cli.bench.report import Budget, Measurement, ratio, show
    from space.sdk import Sandbox

    with ExitStack() as stack:
        client = stack.enter_context(connect())
        bare = Bare(stack, memory_mib=memory)
        pid = server_pid()
        if bare.notes or pid is None:
            raise CommandError("the memory of sandboxes can be read only as root on the server's machine")
        first = stack.enter_context(Sandbox.create(runtime=runtime, memory_mib=memory, client=client))
        first.exec(["true"])  # what the server needs for the first is not the sandboxes'
        time.sleep(SETTLE_SECONDS)
        before = pss_mib([pid])
        sandboxes = [
            stack.enter_context(Sandbox.create(runtime=runtime, memory_mib=memory, client=client)) for _ in range(n)
        ]
        for sandbox in sandboxes:
            sandbox.exec(["true"])
        base = (bare.ask("pss") or {})["pss_mib"]
        time.sleep(SETTLE_SECONDS)
        share = round((pss_mib([pid]) - before) / n, 2)
        machines = [pss_mib(pids) for pids in _processes(data_dir(), [sandbox.id for sandbox in sandboxes])]
    machine = round(sum(machines) / n, 2)
    total = round(machine + max(share, 0), 2)
    show(
        Measurement(
            name="density",
            runtime=first.info.runtime,
            samples=(),
            baseline="PSS of an idle machine that runsc runs by itself",
            extra={
                "n": n,
                "pss_mib": total,
                "machine_pss_mib": machine,
                "largest_machine_pss_mib": max(machines),
                "server_share_mib": share,
                "server_pss_mib": before,
                "baseline_pss_mib": base,
                "ratio": ratio(total, base),
            },
            budgets=(Budget("idle sandbox, all told", total, 45, "MiB"),),
        ),
        as_json=as_json,
        check=check,
    )


def _processes(data_dir: Path, sandbox_ids: list[str]) -> list[set[int]]:
    """Return the processes of each sandbox: those that name it, and those of its control group."""
    from space.host.cgroup import Cgroups
    from space.host.instance import Instance
    from space.runtimes.gvisor import found

    instance = Instance((data_dir / "instance-id").read_text().strip())
    cgroups = Cgroups(instance)
    ours = list(found.processes(instance.run_dir / "gvisor"))
    sets: list[set[int]] = []
    for sandbox_id in sandbox_ids:
        named = [each for each in ours if each.machine_id is not None and each.machine_id.startswith(sandbox_id)]
        if not named:
            raise CommandError(f"no process of sandbox {sandbox_id} was found")
        pids = {each.pid for each in named}
        for each in named:
            if each.cgroup is not None and each.cgroup.startswith(f"{instance.cgroup}/"):
                pids |= cgroups.pids(each.cgroup)
        sets.append(pids)
    return sets

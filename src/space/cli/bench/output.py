"""`space bench output`: a command's whole output, written to its journal and replayed to one reader."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from space.cli.bench.options import CheckOption, JsonOption, RuntimeOption
from space.cli.connection import connect
from space.cli.failure import CommandError

if TYPE_CHECKING:
    from space.sdk import Client, Command

FLAT_MIB = 64  #: growth of the server's memory that still counts as flat: buffers of readers and of the allocator


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("output")(output)


def output(
    n: Annotated[int, typer.Option("--n", help="How many replays.", min=1)] = 3,
    mib: Annotated[int, typer.Option("--mib", help="Size of the output.", min=1, max=4000)] = 1024,
    runtime: RuntimeOption = None,
    as_json: JsonOption = False,
    check: CheckOption = False,
) -> None:
    """Have a command print 1 GiB with no reader, then replay it to one; decoded bytes are counted.

    The baseline is a download of as many bytes from a bare streaming route of the same HTTP server by the same client.
    """
    from space.cli.bench.child import Child
    from space.cli.bench.memory import ResidentMemory, server_pid
    from space.cli.bench.report import Budget, Measurement, percentile, show
    from space.sdk import Client, Sandbox

    size = mib << 20
    replays: list[float] = []
    downloads: list[float] = []
    with (
        connect() as client,
        Child("space.cli.bench.bare_routes") as bare,
        Client(bare.ask()["url"], "none") as bare_client,
        Sandbox.create(runtime=runtime, client=client) as sandbox,
        ResidentMemory(server_pid()) as memory,
    ):
        command = sandbox.start(["head", "-c", str(size), "/dev/zero"], detached=True)
        written = _until_exited(command, size)
        for _ in range(n):
            replays.append(_replay(command, size))
            downloads.append(_download(bare_client, size))
    rate, base = percentile(replays, 50), percentile(downloads, 50)
    mb_per_s = None if not rate else round(size / rate / 1000, 1)
    grown = None
    if memory.peak_mib is not None and memory.before_mib is not None:
        grown = round(memory.peak_mib - memory.before_mib, 1)
    show(
        Measurement(
            name="output",
            runtime=sandbox.info.runtime,
            samples=replays,
            baseline="download of as many bytes from a bare streaming route by the same client",
            baseline_samples=downloads,
            extra={
                "bytes": size,
                "mb_per_s": mb_per_s,
                "baseline_mb_per_s": None if not base else round(size / base / 1000, 1),
                "journal_mb_per_s": round(size / written / 1e6, 1),
                "server_rss_before_mib": memory.before_mib,
                "server_rss_peak_mib": memory.peak_mib,
            },
            budgets=(
                Budget("replay to one reader, decoded", mb_per_s, 60, "MB/s", at_least=True),
                Budget("growth of the server's memory", grown, FLAT_MIB, "MiB"),
            ),
        ),
        as_json=as_json,
        check=check,
    )


def _until_exited(command: "Command", size: int) -> float:
    """Wait until all was printed, with no reader; return the seconds."""
    began = time.perf_counter()
    while True:
        info = command.info()
        if info.state == "exited":
            break
        time.sleep(0.05)
    if info.exit_code != 0 or info.stdout_bytes != size:
        raise CommandError(f"the command ended with {info.exit_code} after {info.stdout_bytes} of {size} bytes")
    return time.perf_counter() - began


def _replay(command: "Command", size: int) -> float:
    from space.sdk import Output

    began = time.perf_counter()
    count = 0
    with command.events() as events:
        for event in events:
            if isinstance(event, Output):
                count += len(event.data)
    if count != size:
        raise CommandError(f"{count} of {size} bytes were replayed")
    return (time.perf_counter() - began) * 1000


def _download(client: "Client", size: int) -> float:
    began = time.perf_counter()
    headers = {"Accept-Encoding": "identity"}
    response = client.transport.request("GET", f"/bytes/{size}", headers=headers, stream=True)
    count = sum(map(len, response.iter_raw()))
    response.close()
    if count != size:
        raise CommandError(f"{count} of {size} bytes were downloaded")
    return (time.perf_counter() - began) * 1000

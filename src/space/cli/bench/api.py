"""`space bench api`: reading the API, against bare routes that return the same bytes."""

import base64
from typing import Annotated, Any

import typer

from space.cli.bench.options import CheckOption, JsonOption

ROWS = 100
ROUNDS = 10
CONNECTIONS = 8


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("api")(api)


def api(
    n: Annotated[int, typer.Option("--n", help="How many requests of each kind.", min=ROUNDS)] = 3000,
    as_json: JsonOption = False,
    check: CheckOption = False,
) -> None:
    """Get one sandbox, and list a hundred, with a token, from a temporary server over a node in memory.

    The baseline is a bare FastAPI route that returns the same bytes, on the same HTTP server with the same settings,
    one process each, in turns.
    """
    from space.cli.bench.child import Child
    from space.cli.bench.report import Budget, Measurement, ratio, show
    from space.sdk import Client

    with Child("space.cli.bench.temporary_api") as served, Child("space.cli.bench.bare_routes") as bare:
        place = served.ask()
        with Client(place["url"], place["token"]) as client:
            ids = [client.create_sandbox(metadata={"n": str(number)}).id for number in range(ROWS)]
            paths = {"get": f"/v1/sandboxes/{ids[0]}", "list": f"/v1/sandboxes?limit={ROWS}"}
            bodies = {name: client.transport.request("GET", path).content for name, path in paths.items()}
        bare_url = bare.ask(answers={name: base64.b64encode(body).decode() for name, body in bodies.items()})["url"]
        found: dict[str, Any] = {}
        for name, path in paths.items():
            found |= _compare(name, f"{place['url']}{path}", f"{bare_url}/answer/{name}", place["token"], n)
    show(
        Measurement(
            name="api",
            runtime=None,
            samples=found.pop("get_samples"),
            baseline="a bare FastAPI route that returns the same bytes, same HTTP server and settings",
            baseline_samples=found.pop("get_bare_samples"),
            extra={
                **{key: value for key, value in found.items() if not key.endswith("_samples")},
                "requests_per_s": found["get_requests_per_s"],
                "list_bytes": len(bodies["list"]),
                "connections": CONNECTIONS,
            },
            budgets=tuple(
                Budget(
                    f"{name}, requests a second against bare",
                    ratio(found[f"{name}_requests_per_s"], found[f"{name}_bare_requests_per_s"]),
                    0.6,
                    "x",
                    at_least=True,
                )
                for name in paths
            ),
        ),
        as_json=as_json,
        check=check,
    )


def _compare(name: str, url: str, bare_url: str, token: str, n: int) -> dict[str, Any]:
    """Load both in turns; return rates and samples."""
    from space.cli.bench.load import load
    from space.cli.bench.report import percentile

    samples: dict[str, list[float]] = {url: [], bare_url: []}
    rates: dict[str, list[float]] = {url: [], bare_url: []}
    for target in (url, bare_url):
        load(target, token=token, count=2 * CONNECTIONS, connections=CONNECTIONS)
    for _ in range(ROUNDS):
        for target in (url, bare_url):
            took, seconds = load(target, token=token, count=n // ROUNDS, connections=CONNECTIONS)
            samples[target] += took
            rates[target].append(len(took) / seconds)
    return {
        f"{name}_requests_per_s": percentile(rates[url], 50),
        f"{name}_bare_requests_per_s": percentile(rates[bare_url], 50),
        f"{name}_p50_ms": percentile(samples[url], 50),
        f"{name}_bare_p50_ms": percentile(samples[bare_url], 50),
        f"{name}_samples": samples[url],
        f"{name}_bare_samples": samples[bare_url],
    }

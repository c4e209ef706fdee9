"""`space pool`: machines that are started ahead, so that a create takes milliseconds."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from space.cli.connection import connect
from space.cli.output import Format, OutputOption, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS = ("template", "runtime", "size", "min", "max", "wanted", "ready", "starting", "hits", "misses", "refill_s")
EXAMPLES = """**Examples**

`space pool set base 2 --max 10` keeps two machines ready, up to ten when many are asked for

`space pool set base 20 --memory 256` keeps twenty of another size
"""


def make_app() -> typer.Typer:
    """Assemble the commands."""
    app = typer.Typer(name="pool", help="Keep machines ready for sandboxes to come.", no_args_is_help=True)
    app.command("list")(list_pools)
    app.command("ls", hidden=True)(list_pools)
    app.command("set", epilog=EXAMPLES)(set_pool)
    app.command("delete")(delete)
    app.command("rm", hidden=True)(delete)
    return app


def list_pools(output: OutputOption = Format.TABLE) -> None:
    """List the pools, with how many creates found a machine ready (hits) and how many found none (misses)."""
    with connect() as client:
        pools = client.get("/v1/pools")["items"]
    if output is Format.JSON:
        print_json({"items": pools})
        return
    print_table((*COLUMNS, "why not more"), ([*_row(pool), pool.get("reason")] for pool in pools))


def set_pool(
    template: Annotated[str, typer.Argument(help="Template of its machines: NAME, NAME:TAG or a digest.")],
    minimum: Annotated[int, typer.Argument(metavar="MIN", help="How many are always ready.", min=0)],
    maximum: Annotated[
        int | None, typer.Option("--max", help="How many are ready when many are asked for; default: MIN.", min=0)
    ] = None,
    runtime: Annotated[str | None, typer.Option("--runtime", help="Isolation; `space doctor` lists them.")] = None,
    memory: Annotated[int | None, typer.Option(help="Memory of each in MiB.", min=1)] = None,
    vcpus: Annotated[int | None, typer.Option(help="Virtual CPUs of each.", min=1)] = None,
    disk: Annotated[int | None, typer.Option(help="Disk of each in MiB.", min=1)] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Make a pool, or change its size.

    A create uses it that asks for the same template, runtime and resources.
    """
    sizes = {"vcpus": vcpus, "memory_mib": memory, "disk_mib": disk}
    resources = {name: value for name, value in sizes.items() if value is not None}
    asked = {"template": template, "min": minimum, "max": maximum, "runtime": runtime, "resources": resources or None}
    body = {name: value for name, value in asked.items() if value is not None}
    with connect() as client:
        pool = client.transport.request("PUT", "/v1/pools", json=body).json()
    if output is Format.JSON:
        print_json(pool)
    else:
        print_table(COLUMNS, [_row(pool)])


def delete(
    template: Annotated[str, typer.Argument(help="The template whose pools are to go.")],
    output: OutputOption = Format.TABLE,
) -> None:
    """Delete the pools of a template, of all sizes.  Machines that wait are ended; sandboxes are not touched."""
    from space.sdk import http

    with connect() as client:
        client.transport.request("DELETE", f"/v1/pools/{http.segment(template)}")
    if output is Format.JSON:
        print_json({"template": template, "deleted": True})
    else:
        print(template)


def _row(pool: "Mapping[str, Any]") -> list[object]:
    size = pool["resources"]
    values = dict(pool) | {
        "size": f"{size['vcpus']} cpu, {size['memory_mib']} MiB, disk {size['disk_mib']} MiB",
        "refill_s": pool["refill_seconds"]["mean"],
    }
    return [values[column] for column in COLUMNS]

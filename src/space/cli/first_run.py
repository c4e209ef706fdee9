"""The second half of ./quickstart, once there is a Python environment: template, server, first program.

`python -m space.cli.first_run [--once | --stop]`.  Like all of the CLI it talks to the server through the public API.
"""

import argparse
import io
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import httpx
from pydantic import ValidationError

from space.config import Settings
from space.core.errors import SpaceError
from space.host.daemon import read_process_file
from space.sdk import Client, Sandbox
from space.sdk import SpaceError as ApiError
from space.sdk.settings import read_cli_file
from space.templates.build import build_and_show
from space.templates.store import TemplateStore

Result = TypeVar("Result")

READY_SECONDS = 60
PROGRAM = """\
import os, platform, sys
print(f"Hello from Python {platform.python_version()} in a SPACE sandbox.")
print(f"I am {os.popen('id -un').read().strip()}, on {platform.node()}, kernel {platform.release()}.")
print("The answer is", 6 * 7)
"""


def main() -> None:
    """Do what ./quickstart promises; exits with 1 and a sentence when it cannot."""
    parser = argparse.ArgumentParser(prog="quickstart")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--once", action="store_true", help="stop at the end what this run started")
    choice.add_argument("--stop", action="store_true", help="stop the server; its sandboxes stay")
    arguments = parser.parse_args()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # programs that we start print in between
    try:
        settings = Settings()
        if arguments.stop:
            raise SystemExit(space("down"))
        first_run(settings, once=arguments.once)
    except ValidationError as error:
        problems = "; ".join(f"SPACE_{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors() if e["loc"])
        raise SystemExit(f"quickstart: a setting is wrong: {problems}") from None
    except SpaceError as error:
        raise SystemExit(f"quickstart: {error.message}") from None
    except ApiError as error:
        raise SystemExit(f"quickstart: the server answered: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def first_run(settings: Settings, *, once: bool) -> None:
    """Build, start, run a program and say how to go on."""
    data_dir = settings.data_dir
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    build_and_show(TemplateStore(data_dir / "templates"), extra_ca=settings.extra_ca)
    ran_before = is_running(data_dir)
    is_in_use = True
    try:
        start_server()
        api_url, token = connection(data_dir)
        wait_until_ready(api_url)
        with Client(api_url=api_url, token=token) as client:
            run_program(client)
            is_in_use = any(sandbox.state != "deleted" for sandbox in client.sandboxes())
        if not once:
            print_farewell(api_url, data_dir)
    finally:
        if once and not ran_before:
            # Sandboxes of an earlier server stay; without any, namespaces and mounts made ahead go too.
            space("down") if is_in_use else space("down", "--machines")


def start_server() -> None:
    """Start `space up` in the background, or leave the one that runs if it is of this very code.

    `space up --detach` decides which, replaces a server of other code, and explains what it refuses.
    """
    if space("up", "--detach"):
        raise SystemExit("quickstart: the server did not start; see above.")


def connection(data_dir: Path) -> tuple[str, str]:
    """Return the URL and token that the server left for programs on this machine."""
    found = read_cli_file(data_dir / "cli.json")
    if found is None:
        raise SystemExit(f"quickstart: the server left no {data_dir}/cli.json; see its log in {data_dir}.")
    return found["api_url"], found["token"]


def wait_until_ready(api_url: str) -> None:
    """Wait until /readyz answers 200."""
    deadline = time.monotonic() + READY_SECONDS
    said = time.monotonic()
    with httpx.Client(base_url=api_url, timeout=5, trust_env=False) as client:
        while True:
            try:
                response = client.get("/readyz")
                if response.status_code == httpx.codes.OK:
                    return
                problem = response.text[:500]
            except httpx.TransportError as error:
                problem = str(error)
            if time.monotonic() > deadline:
                raise SystemExit(f"quickstart: the server at {api_url} is not ready after {READY_SECONDS} s: {problem}")
            if time.monotonic() - said > 2:
                said = time.monotonic()
                print("  Waiting for the server …", flush=True)
            time.sleep(0.05)


def run_program(client: Client) -> None:
    """Run the first program in a sandbox of its own and show its output and how long each part took."""
    sandbox, created = _timed(lambda: Sandbox.create("base", client=client, metadata={"made-by": "quickstart"}))
    try:
        result, ran = _timed(lambda: sandbox.exec(["python3", "-c", PROGRAM]))
    finally:
        _, deleted = _timed(sandbox.kill)
    print()
    for line in (result.stdout + result.stderr).splitlines():
        print(f"    {line}")
    print(
        f"\n  Created a sandbox in {created * 1000:.0f} ms, ran Python in it in {ran * 1000:.0f} ms, "
        f"deleted it in {deleted * 1000:.0f} ms."
    )
    if result.exit_code != 0:
        raise SystemExit(f"quickstart: the program ended with code {result.exit_code}")


def print_farewell(api_url: str, data_dir: Path) -> None:
    """Say where the server is, how to go on and how to stop."""
    program = Path(sys.executable).with_name("space")
    print(
        f"""\
  SPACE runs at {api_url}; its data is in {data_dir}.

  Go on:    {program} run -- python3 -c 'print(6*7)'
            {program} sandbox create
            {program} doctor
  Read:     README.md, docs/getting-started.md, {api_url}/openapi.json
  Stop:     ./quickstart --stop"""
    )


def is_running(data_dir: Path) -> bool:
    """Whether a server runs on this data directory."""
    run_dir = data_dir / "run"
    return any(read_process_file(run_dir, path.stem) is not None for path in run_dir.glob("*.json"))


def space(*arguments: str) -> int:
    """Run the `space` command of this environment; return its exit code."""
    command = [str(Path(sys.executable).with_name("space")), *arguments]
    return subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode


def _timed(action: Callable[[], Result]) -> tuple[Result, float]:
    started = time.monotonic()
    result = action()
    return result, time.monotonic() - started


if __name__ == "__main__":
    main()

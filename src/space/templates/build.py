"""Build the base template into a directory and show how far it is: `python -m space.templates.build DIRECTORY`.

For ./test and ./quickstart, and for whoever fills a cache ahead.  Standard library only.
"""

import asyncio
import sys
import time
from pathlib import Path

from space.core.errors import SpaceError
from space.templates.base import build_base
from space.templates.progress import Progress
from space.templates.store import TemplateStore

_BAR_WIDTH = 24


class Display:
    """A bar on a terminal; elsewhere a line for each step."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._step = ""
        self._is_terminal = sys.stdout.isatty()

    def show(self, progress: Progress) -> None:
        """Show one report."""
        seconds = time.monotonic() - self._started
        if self._is_terminal:
            bar = "█" * int(progress.fraction * _BAR_WIDTH)
            text = f"{bar:░<{_BAR_WIDTH}} {progress.fraction:4.0%} {seconds:3.0f} s  {progress.step} {progress.detail}"
            print(f"\r\033[K  {text[:110]}", end="", flush=True)
        elif progress.step != self._step:
            self._step = progress.step
            print(f"  base template: {progress.step} … {seconds:.0f} s", flush=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._is_terminal:
            print("\r\033[K", end="", flush=True)


def build_and_show(store: TemplateStore, *, extra_ca: Path | None = None) -> None:
    """Make sure that `base` exists; says nothing if it did already."""
    display = Display()
    started = time.monotonic()
    was_built = False

    def show(progress: Progress) -> None:
        nonlocal was_built
        was_built = True
        display.show(progress)

    try:
        template = asyncio.run(build_base(store, extra_ca=extra_ca, report=show))
    finally:
        display.close()
    if was_built:
        print(
            f"  Building the base template: done in {time.monotonic() - started:.0f} s "
            f"({template.size_bytes >> 20} MiB, {template.digest[:19]}…)"
        )


def main() -> None:
    """Build into the directory named by the only argument."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m space.templates.build DIRECTORY")
    try:
        build_and_show(TemplateStore(Path(sys.argv[1])))
    except SpaceError as error:
        raise SystemExit(f"cannot build the base template: {error.message}") from None


if __name__ == "__main__":
    main()

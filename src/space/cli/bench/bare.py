"""The bare side of a measurement: where it can be had, and how it is asked for."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from space.cli.bench.child import Child


class Bare:
    """Machines without a control plane (`bare_machines`), or the reason why there are none here."""

    def __init__(self, stack: ExitStack, *, memory_mib: int | None = None) -> None:
        self.notes: list[str] = []
        self._child: Child | None = None
        why_not = _why_not()
        if why_not is not None:
            self.notes.append(why_not)
            return
        arguments = [] if memory_mib is None else [str(memory_mib)]
        self._child = stack.enter_context(Child("space.cli.bench.bare_machines", str(data_dir()), *arguments))

    def baseline(self, text: str) -> str | None:
        """Return what the baseline is, if there is one."""
        return None if self._child is None else text

    def samples(self, what: str, **question: Any) -> list[float]:
        """Measure once; returns milliseconds, none if there is nothing to measure with."""
        if self._child is None:
            return []
        answer = self._child.ask(what=what, **question)
        return [answer["ms"]] if "ms" in answer else list(answer["all_ms"])

    def ask(self, what: str, **question: Any) -> dict[str, Any] | None:
        return None if self._child is None else self._child.ask(what=what, **question)


def data_dir() -> Path:
    """Return the data directory of the server that the command line talks to, if that is on this machine."""
    from space.sdk.settings import cli_file

    return cli_file().parent


def _why_not() -> str | None:
    if os.geteuid() != 0:
        return "no baseline: it needs root"
    if not (data_dir() / "templates").is_dir():
        return f"no baseline: {data_dir()} on this machine holds no templates; set SPACE_DATA_DIR"
    return None

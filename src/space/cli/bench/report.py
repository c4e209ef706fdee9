"""What a measurement found: one JSON object, or a table with its budgets."""

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from space.cli.failure import FAILED
from space.cli.output import print_json


@dataclass(frozen=True, slots=True)
class Budget:
    """A promise of DESIGN §10: a figure and the bound that it must not cross."""

    what: str
    value: float | None  #: None: could not be measured here
    bound: float
    unit: str = ""
    at_least: bool = False  #: else at most

    @property
    def is_kept(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.bound if self.at_least else self.value <= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Samples in milliseconds, those of the baseline, and what else is to be said."""

    name: str
    runtime: str | None
    samples: Sequence[float]
    baseline: str | None  #: what the baseline is; None: there is none here, and `notes` say why
    baseline_samples: Sequence[float] = ()
    budgets: Sequence[Budget] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def as_object(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        base = percentile(self.baseline_samples, 50)
        middle = percentile(self.samples, 50)
        return {
            "name": self.name,
            "runtime": self.runtime,
            "n": len(self.samples),
            "p50_ms": middle,
            "p95_ms": percentile(self.samples, 95),
            "p99_ms": percentile(self.samples, 99),
            "baseline": self.baseline,
            "baseline_p50_ms": base,
            "ratio": ratio(middle, base),
            **self.extra,
            "budgets": [
                {"what": b.what, "value": b.value, "bound": b.bound, "unit": b.unit, "is_kept": b.is_kept}
                for b in self.budgets
            ],
            "notes": list(self.notes),
            "machine": machine(),
        }


def show(measurement: Measurement, *, as_json: bool, check: bool) -> None:
    """Print it; with `check`, leave with 1 if a budget is missed."""
    found = measurement.as_object()
    if as_json:
        print_json(found)
    else:
        _print_table(found)
    if check and any(budget.is_kept is False for budget in measurement.budgets):
        raise typer.Exit(FAILED)


def _print_table(found: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    figures = Table("", "value", box=None, pad_edge=False)
    for name, value in found.items():
        if name not in ("name", "budgets", "notes", "machine") and not isinstance(value, dict | list):
            figures.add_row(name, Text(_figure(value)))
    console.print(
        f"[bold]{found['name']}[/bold]  n={found['n']}  {found['machine']['cpu']}, {found['machine']['cores']} cores"
    )
    console.print(figures)
    if found["budgets"]:
        budgets = Table("what", "value", "budget", "", box=None, pad_edge=False)
        for budget in found["budgets"]:
            verdict = {True: "[green]kept[/green]", False: "[red]missed[/red]", None: "not measured"}[budget["is_kept"]]
            budgets.add_row(budget["what"], _figure(budget["value"]), f"{budget['bound']:g} {budget['unit']}", verdict)
        console.print(budgets)
    for note in found["notes"]:
        console.print(Text(f"note: {note}"))


def _figure(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"
    return "-" if value is None else str(value)


def percentile(samples: Sequence[float], percent: float) -> float | None:
    """Return the nearest-rank percentile: a value that really was seen."""
    if not samples:
        return None
    rank = math.ceil(percent / 100 * len(samples))
    return round(sorted(samples)[max(rank, 1) - 1], 3)


def ratio(value: float | None, base: float | None) -> float | None:
    """Return how many times as long it took; None without a baseline."""
    return round(value / base, 3) if value is not None and base else None


def machine() -> dict[str, Any]:
    """Describe what this ran on, and how busy it was."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())

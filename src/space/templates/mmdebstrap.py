"""How far mmdebstrap is, told from what it prints.

Its phases take about the same share of the time on every machine that was measured (two cores, 37 s in all); inside
a phase packages are counted: dpkg says "Unpacking" and "Setting up" once for each.
"""

import re

from space.templates.progress import Progress, Report

# What mmdebstrap says when a phase begins → how people call it, and the fraction of the build at its start.
_PHASES = (
    ("running apt-get update", "reading package lists", 0.01),
    ("downloading packages with apt", "downloading packages", 0.06),
    ("extracting archives", "unpacking the essential system", 0.12),
    ("installing essential packages", "installing the essential system", 0.45),
    ("installing remaining packages", "installing packages", 0.60),
    ("running --customize-hook", "setting up the user", 0.92),
    ("cleaning package lists", "cleaning up", 0.94),
)
_NEW_PACKAGES = re.compile(r"(\d+) newly installed")
_PACKAGE = re.compile(r"(?:Get:\d+|Unpacking|Setting up) (\S+)")


class ProgressReader:
    """Turns mmdebstrap's lines into reports."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._phase = 0
        self._packages = 0
        self._seen = 0

    def read(self, line: str) -> None:
        """Take one line; reports only what is news."""
        for index, (beginning, step, fraction) in enumerate(_PHASES):
            if line.startswith(f"I: {beginning}") and index >= self._phase:
                self._phase, self._seen = index, 0
                self._report(Progress(step=step, fraction=fraction))
                return
        if found := _NEW_PACKAGES.search(line):
            self._packages = int(found[1])
        elif found := _PACKAGE.match(line):
            self._seen += 1
            self._report(Progress(step=_PHASES[self._phase][1], fraction=self._fraction(), detail=found[1]))

    def _fraction(self) -> float:
        start = _PHASES[self._phase][2]
        end = _PHASES[self._phase + 1][2] if self._phase + 1 < len(_PHASES) else 0.96
        expected = max(1, 2 * self._packages)  # each is unpacked and set up
        return start + (end - start) * min(1.0, self._seen / expected)

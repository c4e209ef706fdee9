from itertools import pairwise
from pathlib import Path

from space.templates.mmdebstrap import ProgressReader
from space.templates.progress import Progress

OUTPUT = (Path(__file__).parent / "mmdebstrap-output.txt").read_text().splitlines()


def read(lines: list[str]) -> list[Progress]:
    reports: list[Progress] = []
    reader = ProgressReader(reports.append)
    for line in lines:
        reader.read(line)
    return reports


def test_progress_never_goes_back_and_ends_near_the_end() -> None:
    fractions = [report.fraction for report in read(OUTPUT)]
    assert all(earlier <= later for earlier, later in pairwise(fractions))
    assert 0.9 < fractions[-1] < 1


def test_each_phase_is_named_in_order() -> None:
    steps = list(dict.fromkeys(report.step for report in read(OUTPUT)))
    assert steps == [
        "reading package lists",
        "downloading packages",
        "unpacking the essential system",
        "installing the essential system",
        "installing packages",
        "setting up the user",
        "cleaning up",
    ]


def test_packages_are_told_by_name_while_they_are_installed() -> None:
    installed = [report.detail for report in read(OUTPUT) if report.step == "installing packages"]
    assert "python3" in installed
    assert len(installed) > 10


def test_lines_that_mean_nothing_report_nothing() -> None:
    assert read(["", "dpkg: warning: ignoring pre-dependency problem!", "I: something new"]) == []

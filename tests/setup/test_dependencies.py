"""What the code imports is what pyproject.toml declares, extra by extra."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def declared(*extras: str) -> set[str]:
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def third_party(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names and top not in ("space", "space_guest"):
                    yield path, top


def undeclared(folder: Path, *extras: str) -> set[str]:
    known = declared(*extras)
    distributions = packages_distributions()
    found = set()
    for path, module in third_party(folder):
        names = {canonicalize_name(name) for name in distributions.get(module, [module])}
        if not names & known:
            found.add(f"{path.relative_to(ROOT)} imports {module}")
    return found


def test_everything_imported_is_declared() -> None:
    assert undeclared(ROOT / "src", "server", "node", "testing") == set()


def test_what_runs_in_production_needs_no_test_tools() -> None:
    for folder in (ROOT / "src/space").iterdir():
        if folder.is_dir() and folder.name != "testing":
            assert undeclared(folder, "server", "node") == set()


def test_the_sdk_needs_what_a_plain_install_brings() -> None:
    assert undeclared(ROOT / "src/space/sdk") == set()


def test_the_guest_agent_needs_nothing() -> None:
    assert set(third_party(ROOT / "src/space_guest")) == set()


def test_everything_declared_is_imported_or_says_why() -> None:
    imported = {module for _, module in third_party(ROOT / "src")}
    distributions = packages_distributions()
    used = {canonicalize_name(name) for module in imported for name in distributions.get(module, [])}
    # uvicorn loads its parsers and loops by name.
    loaded_by_name = {"httptools", "uvloop"}
    unused = declared("server", "node") - used - loaded_by_name
    assert unused == set()


@pytest.mark.parametrize("path", ["pyproject.toml", "quickstart", "test", "scripts", "src", "docs", "README.md"])
def test_no_package_mirror_is_named(path: str) -> None:
    mirror = re.compile(rb"(deb|ftp|snapshot|archive|security)\.debian\.org|pythonhosted\.org|pypi\.org/simple")
    place = ROOT / path
    for file in [place] if place.is_file() else place.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            assert not mirror.search(file.read_bytes()), file

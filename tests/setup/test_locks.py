"""The locks pin everything by hash, name no host, and say what pyproject.toml says."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = ("runtime", "dev")
ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n", re.MULTILINE)


def text(lock: str) -> str:
    return (ROOT / f"requirements/{lock}.txt").read_text()


def pinned(lock: str) -> dict[str, str]:
    return {canonicalize_name(match[1]): match[2] for match in ENTRY.finditer(text(lock))}


def required(*groups: str) -> list[Requirement]:
    project = PYPROJECT["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in ("server", "node", "all"))]
    lists += [PYPROJECT["dependency-groups"][group] for group in groups]
    found = [Requirement(line) for lines in lists for line in lines]
    return [requirement for requirement in found if requirement.name != project["name"]]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_is_a_version_with_hashes(lock: str) -> None:
    rest = ENTRY.sub("", text(lock))
    assert rest == "# Made by scripts/lock from pyproject.toml; do not edit.\n"


@pytest.mark.parametrize("lock", LOCKS)
def test_no_host_is_named(lock: str) -> None:
    assert not re.search(r"://|--(extra-)?index-url|--find-links|--trusted-host|@", text(lock))


@pytest.mark.parametrize(("lock", "groups"), [("runtime", ["build"]), ("dev", ["build", "dev"])])
def test_the_lock_satisfies_pyproject(lock: str, groups: list[str]) -> None:
    versions = pinned(lock)
    for requirement in required(*groups):
        name = canonicalize_name(requirement.name)
        assert name in versions, f"{name} is not in requirements/{lock}.txt; run scripts/lock"
        assert requirement.specifier.contains(versions[name], prereleases=True), name


def test_the_development_lock_holds_the_runtime_in_the_same_versions() -> None:
    development = pinned("dev")
    assert {name: development.get(name) for name in pinned("runtime")} == pinned("runtime")


def test_this_environment_is_what_the_lock_says() -> None:
    from importlib.metadata import PackageNotFoundError, version

    if not (Path(sys.prefix) / "space-dev.stamp").exists():
        pytest.skip("not an environment that ./test made")
    wrong = {}
    for name, wanted in pinned("dev").items():
        try:
            found = version(name)
        except PackageNotFoundError:
            found = "missing"
        if found != wanted:
            wrong[name] = found
    assert wrong == {}

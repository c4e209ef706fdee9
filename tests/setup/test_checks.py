"""What ./quickstart and ./test say on a machine where they cannot go on, and that they change nothing there.

Each test makes such a machine: a real namespace with another /etc/os-release, a full disk, no network, no root.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent"}


@pytest.fixture
def checkout() -> Iterator[Path]:
    """A copy of what the commands need, readable by everyone and without an environment."""
    directory = Path(tempfile.mkdtemp(prefix="space-checkout."))
    directory.chmod(0o755)
    for name in ("quickstart", "test"):
        shutil.copy(ROOT / name, directory)
    for name in ("scripts", "requirements", "src/space/templates", "src/space/core"):
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "src/space/__init__.py"):
        shutil.copy(ROOT / name, directory / name)
    yield directory
    shutil.rmtree(directory)


def run(
    command: Sequence[str | Path], *, prepare: str = "", network: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run in a mount namespace of its own, after `prepare`."""
    namespaces = ["--mount", "--propagation", "private", *([] if network else ["--net"])]
    return subprocess.run(
        ["unshare", *namespaces, "sh", "-ec", f'{prepare}\nexec "$@"', "sh", *map(str, command)],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, **environment},
        timeout=120,
        check=False,
    )


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if "__pycache__" not in path.parts}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def unchanged(checkout: Path, data_dir: Path) -> Iterator[None]:
    """Fails if the test changed the checkout, made a data directory or touched Debian's packages."""
    before = files(checkout), Path("/var/lib/dpkg/status").read_bytes(), files(Path("/etc/apt"))
    yield
    assert (files(checkout), Path("/var/lib/dpkg/status").read_bytes(), files(Path("/etc/apt"))) == before
    assert not data_dir.exists()


pytestmark = [pytest.mark.root, pytest.mark.usefixtures("unchanged")]


def test_without_root_it_says_sudo(checkout: Path) -> None:
    for command in ("quickstart", "test"):
        ran = run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", checkout / command])
        assert ran.returncode == 1
        assert "this needs root" in ran.stderr
        assert f"Run: sudo {checkout / command}" in ran.stderr


@pytest.mark.parametrize(
    ("os_release", "named"),
    [
        ("ID=ubuntu\nVERSION_ID=24.04\nVERSION_CODENAME=noble\n", "this is ubuntu 24.04 (noble)"),
        ("ID=debian\nVERSION_ID=13\nVERSION_CODENAME=trixie\n", "this is debian 13 (trixie)"),
        ("ID=arch\n", "this is arch"),
    ],
)
def test_on_another_system_it_names_it_and_what_it_needs(
    checkout: Path, tmp_path: Path, os_release: str, named: str
) -> None:
    (tmp_path / "os-release").write_text(os_release)
    ran = run([checkout / "quickstart"], prepare=f"mount --bind {tmp_path}/os-release /etc/os-release")
    assert ran.returncode == 1
    assert named in ran.stderr
    assert "Debian 12" in ran.stderr


def test_on_a_full_disk_it_says_how_much_is_needed_where(checkout: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    ran = run(
        [checkout / "quickstart"],
        prepare=f"mount -t tmpfs -o size=8m tmpfs {small}",
        SPACE_DATA_DIR=f"{small}/data",
    )
    assert ran.returncode == 1
    assert re.search(rf"1500 MiB are needed on the disk of {small}/data, and [78] MiB are free", ran.stderr)
    assert "SPACE_DATA_DIR=/larger/disk/space" in ran.stderr


def test_without_a_network_it_says_what_to_check(checkout: Path, tmp_path: Path, data_dir: Path) -> None:
    # A machine that lacks runsc, by what its package database says.
    status = re.sub(r"Package: runsc\n(.+\n)+\n", "", Path("/var/lib/dpkg/status").read_text())
    (tmp_path / "status").write_text(status)
    ran = run(
        [checkout / "quickstart"],
        prepare=f"mount --bind {tmp_path}/status /var/lib/dpkg/status",
        network=False,
        SPACE_DATA_DIR=str(data_dir),
    )
    assert ran.returncode == 1
    assert "apt cannot reach its package sources; nothing has been changed" in ran.stderr
    assert "apt-get update" in ran.stderr


def test_a_relative_data_directory_is_refused(checkout: Path) -> None:
    ran = run([checkout / "quickstart"], SPACE_DATA_DIR="data")
    assert ran.returncode == 1
    assert "not an absolute path" in ran.stderr


@pytest.mark.parametrize("arguments", [["--twice"], ["--once", "--stop"], ["once"]])
def test_other_arguments_are_refused_with_the_usage(checkout: Path, arguments: list[str]) -> None:
    ran = run([checkout / "quickstart", *arguments])
    assert ran.returncode == 1
    assert "Usage: ./quickstart [--once | --stop]" in ran.stderr


def test_stopping_where_nothing_was_ever_installed_succeeds(checkout: Path) -> None:
    ran = run([checkout / "quickstart", "--stop"])
    assert (ran.returncode, ran.stdout) == (0, "  No server runs: nothing is installed here.\n")


@pytest.mark.parametrize("command", ["quickstart", "test", "scripts/fresh-machine"])
def test_help_is_printed_without_root(checkout: Path, command: str) -> None:
    ran = run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", checkout / command, "--help"])
    assert ran.returncode == 0
    assert "quickstart" in ran.stdout or "./test" in ran.stdout
    assert "#" not in ran.stdout

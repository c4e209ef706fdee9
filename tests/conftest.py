"""What every test may use.  Marks: `root` (root, runsc and the base template), `soak` (long forms)."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPACE = Path(sys.executable).with_name("space")
TEMPLATES = Path(os.environ.get("SPACE_TEST_TEMPLATES", "/var/cache/space/templates"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def templates_dir() -> Path:
    """The shared directory with the built `base`; read-only by agreement."""
    if not (TEMPLATES / "names/base/latest").exists():
        pytest.skip(f"no base template in {TEMPLATES}; ./test builds it")
    return TEMPLATES


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass(frozen=True)
class Place:
    """A data directory and two ports."""

    data_dir: Path
    environment: dict[str, str]

    def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**self.environment, **environment},
            timeout=120,
            check=False,
        )

    def quickstart(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(ROOT / "quickstart", *arguments, **environment)

    def space(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(SPACE, *arguments)

    @property
    def pids(self) -> list[int]:
        return [int(path.read_text()) for path in sorted((self.data_dir / "run").glob("*.pid"))]

    def sandboxes(self) -> list[dict[str, str]]:
        listed = self.space("sandbox", "list", "-o", "json")
        answer = json.loads(listed.stdout) if listed.returncode == 0 else []
        found: list[dict[str, str]] = answer["items"] if isinstance(answer, dict) else answer
        return found

    def kill(self) -> None:
        """Do what a person does with `kill -9 $(cat run/*.pid)`."""
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def place(tmp_path: Path, templates_dir: Path) -> Iterator[Place]:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    (data_dir / "templates").symlink_to(templates_dir)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/root",
        "SPACE_DATA_DIR": str(data_dir),
        "SPACE_LISTEN": f"127.0.0.1:{free_port()}",
        "SPACE_DATA_PLANE_LISTEN": f"127.0.0.1:{free_port()}",
    }
    place = Place(data_dir, environment)
    yield place
    for sandbox in place.sandboxes():
        place.space("sandbox", "delete", sandbox["id"])
    place.quickstart("--stop")
    for pid in place.pids:  # there is none unless the stop failed
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, with the reason; ./test makes sure that nothing is missing."""
    reason = _why_not_root()
    if reason:
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(pytest.mark.skip(reason=reason))


def _why_not_root() -> str | None:
    if os.geteuid() != 0:
        return "needs root"
    missing = [name for name in ("runsc", "ip", "nft", "mke2fs") if shutil.which(name) is None]
    return f"needs {', '.join(missing)}; ./test installs them" if missing else None

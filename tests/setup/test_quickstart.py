"""./quickstart on this machine, with a data directory and ports of its own: what it does again, and what it leaves."""

import contextlib
import json
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.instance import Instance

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.root


class Place(Instance):
    """An instance that ./quickstart starts."""

    def quickstart(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / "quickstart", *arguments],
            env={**self.environment, **environment},
            check=False,
            capture_output=True,
            text=True,
            timeout=180,
            stdin=subprocess.DEVNULL,
        )

    def sandboxes(self) -> list[dict[str, str]]:
        answer = json.loads(self.space("sandbox", "list", "-o", "json").stdout)
        found: list[dict[str, str]] = answer["items"] if isinstance(answer, dict) else answer
        return found

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.environment["SPACE_LISTEN"].partition(":")
        return host, int(port)


@pytest.fixture
def place(tmp_path: Path, templates_dir: Path) -> Iterator[Place]:
    made = Place(tmp_path / "data", templates_dir)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, templates_dir: Path) -> Iterator["Started"]:
    """A place where ./quickstart has run, and what it said; its server is left running."""
    made = Place(tmp_path_factory.mktemp("started") / "data", templates_dir)
    yield made, made.quickstart()
    made.remove()


Started = tuple[Place, subprocess.CompletedProcess[str]]


def test_it_ends_with_a_program_that_has_run_and_says_how_to_go_on_and_how_to_stop(started: Started) -> None:
    place, ran = started
    assert ran.returncode == 0, ran.stderr
    for promised in ("The answer is 42", "Created a sandbox in", f"http://{place.environment['SPACE_LISTEN']}"):
        assert promised in ran.stdout
    assert "space run -- python3 -c 'print(6*7)'" in ran.stdout
    assert "./quickstart --stop" in ran.stdout
    assert ran.stdout.count("password") == 1
    assert place.sandboxes() == []


def test_run_again_it_changes_nothing_and_keeps_the_server(started: Started) -> None:
    place, _ = started
    pids = place.pids
    environment = {path: path.stat().st_mtime_ns for path in (ROOT / ".venv").glob("*.stamp")}
    again = place.quickstart()
    assert again.returncode == 0
    assert "The answer is 42" in again.stdout
    assert "Installing" not in again.stdout
    assert "password" not in again.stdout
    assert place.pids == pids
    assert {path: path.stat().st_mtime_ns for path in (ROOT / ".venv").glob("*.stamp")} == environment


def test_once_stops_what_it_started(place: Place) -> None:
    ran = place.quickstart("--once")
    assert ran.returncode == 0
    assert "The answer is 42" in ran.stdout
    assert place.pids == []
    assert not _answers(place)
    assert str(place.data_dir) not in Path("/proc/self/mounts").read_text()
    assert list(Path("/run/netns").glob(f"space-{place.tag}-*")) == []


def test_once_leaves_the_sandboxes_of_a_server_that_was_stopped(started: Started) -> None:
    place, _ = started
    kept = place.space("sandbox", "create").stdout.strip()
    place.space("down")
    assert place.quickstart("--once").returncode == 0
    assert place.pids == []
    place.up()
    assert place.space("sandbox", "exec", kept, "--", "echo", "still here").stdout == "still here\n"
    place.space("sandbox", "delete", kept)


def test_once_leaves_a_server_that_ran_before(started: Started) -> None:
    place, _ = started
    pids = place.pids
    assert place.quickstart("--once").returncode == 0
    assert place.pids == pids
    assert _answers(place)


def test_it_restarts_a_killed_server_whose_sandboxes_and_readers_go_on(place: Place) -> None:
    assert place.quickstart().returncode == 0
    kept = place.space("sandbox", "create").stdout.strip()
    script = "for i in $(seq 1 30); do echo $i; sleep 0.2; done"
    with subprocess.Popen(
        place.argv("run", "--", "sh", "-c", script), stdout=subprocess.PIPE, text=True, env=place.environment
    ) as reader:
        assert reader.stdout is not None
        lines = [reader.stdout.readline() for _ in range(5)]
        place.kill_9()
        restarted = place.quickstart()
        assert restarted.returncode == 0, restarted.stderr
        lines += list(reader.stdout)
    assert [line.strip() for line in lines] == [str(number) for number in range(1, 31)]
    assert reader.returncode == 0
    assert place.space("sandbox", "exec", kept, "--", "echo", "still here").stdout == "still here\n"


def test_it_replaces_the_server_of_another_checkout_and_keeps_its_sandboxes(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(ROOT / "src", other / "src", ignore=shutil.ignore_patterns("__pycache__"))
    place.up(PYTHONPATH=str(other / "src"))
    place.environment["PYTHONPATH"] = str(ROOT / "src")
    sandbox = place.space("sandbox", "create").stdout.strip()
    before = place.pids
    ran = place.quickstart()
    assert ran.returncode == 0, ran.stderr
    assert "Replacing the server" in ran.stdout
    assert place.pids != before
    assert place.space("sandbox", "exec", sandbox, "--", "echo", "still here").stdout == "still here\n"


def test_it_refuses_the_data_of_a_newer_version_and_leaves_it_as_it_is(place: Place) -> None:
    assert place.quickstart("--once").returncode == 0
    database = place.data_dir / "space.db"
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'from-the-future'")
    before = database.read_bytes()
    ran = place.quickstart()
    assert ran.returncode == 1
    assert "newer" in ran.stderr
    assert database.read_bytes() == before
    assert place.pids == []


def test_a_wrong_setting_is_named(place: Place) -> None:
    ran = place.quickstart(SPACE_LISTEN="everywhere")
    assert ran.returncode == 1
    assert "SPACE_LISTEN" in ran.stderr
    assert "HOST:PORT" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_port_that_is_taken_is_named_before_anything_is_changed(place: Place) -> None:
    with socket.create_server(place.address):
        ran = place.quickstart()
    assert ran.returncode == 1
    assert f"something else listens on {place.environment['SPACE_LISTEN']}" in ran.stderr
    assert sorted(path.name for path in place.data_dir.iterdir()) == ["templates"]


def _answers(place: Place) -> bool:
    try:
        socket.create_connection(place.address, timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True

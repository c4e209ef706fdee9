"""The measurements measure what they say; how fast it is here is no test."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.e2e.instance import Instance

from space.cli.bench.child import Child
from space.cli.bench.load import load
from space.cli.bench.memory import ResidentMemory, pss_mib
from space.cli.bench.report import Budget, Measurement, percentile, ratio
from space.cli.failure import CommandError

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {"name", "runtime", "n", "p50_ms", "p95_ms", "p99_ms", "baseline", "baseline_p50_ms", "ratio", "machine"}


@given(st.lists(st.floats(0, 1e6).map(lambda value: round(value, 3)), min_size=1), st.sampled_from([50, 95, 99]))
def test_a_percentile_is_a_sample_with_enough_samples_at_or_below_it(samples: list[float], percent: int) -> None:
    found = percentile(samples, percent)
    assert found in samples
    assert sum(sample <= found for sample in samples) >= percent / 100 * len(samples) - 1e-9
    assert sum(sample < found for sample in samples) < percent / 100 * len(samples) + 1e-9


def test_without_a_baseline_there_is_no_ratio() -> None:
    found = Measurement(name="x", runtime=None, samples=[1.0, 2.0], baseline=None).as_object()
    assert found.keys() >= FIELDS
    assert (found["ratio"], found["baseline_p50_ms"]) == (None, None)
    assert ratio(3.0, 2.0) == 1.5


def test_budgets_are_kept_missed_or_not_measured() -> None:
    assert Budget("x", 1.2, 1.3).is_kept is True
    assert Budget("x", 1.4, 1.3).is_kept is False
    assert Budget("x", 61, 60, at_least=True).is_kept is True
    assert Budget("x", None, 1).is_kept is None


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    with Child("space.cli.bench.bare_routes") as child:
        yield child


def test_the_load_is_as_many_requests_as_asked_for(bare: Child) -> None:
    url = bare.ask(answers={"get": base64.b64encode(b"x" * 100_000).decode()})["url"]
    samples, seconds = load(f"{url}/answer/get", token="none", count=101, connections=4)
    assert len(samples) == 101
    assert 0 < max(samples) / 1000 <= seconds


def test_a_load_that_is_refused_is_no_measurement(bare: Child) -> None:
    url = bare.ask()["url"]
    with pytest.raises(CommandError, match="404"):
        load(f"{url}/nosuch", token="none", count=3, connections=1)


def test_a_helper_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken_helper.py").write_text("import nosuchmodule")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Child("broken_helper") as child, pytest.raises(CommandError, match="nosuchmodule"):
        child.ask()


def test_memory_is_watched_while_it_grows() -> None:
    with ResidentMemory(os.getpid()) as memory:
        held = b"x" * (64 << 20)
        for _ in range(100):
            if memory.peak_mib and memory.before_mib and memory.peak_mib > memory.before_mib + 50:
                break
            memory._stopped.wait(0.05)
        del held
    assert memory.before_mib is not None
    assert memory.peak_mib is not None
    assert memory.peak_mib > memory.before_mib + 50
    with ResidentMemory(None) as nothing:
        assert nothing.peak_mib is None


def test_memory_that_is_shared_counts_as_a_share() -> None:
    assert pss_mib([os.getpid()]) > 5
    assert pss_mib([2**22 + 1]) == 0  # no such process


def test_the_api_is_measured_without_a_server_or_root() -> None:
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"], "SPACE_DATA_DIR": "/nonexistent"}
    command = [sys.executable, "-m", "space.cli", "bench", "api", "--n", "100", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() >= FIELDS | {"requests_per_s", "get_requests_per_s", "list_requests_per_s"}
    assert found["n"] == 100
    assert found["list_bytes"] > 20_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, templates_dir: Path) -> Iterator[Instance]:
    made = Instance(tmp_path_factory.mktemp("bench") / "space", templates_dir)
    try:
        made.up()
        yield made
    finally:
        made.remove()


@pytest.mark.root
@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (("command", "--n", "3"), {"python_ratio"}),
        (("output", "--n", "1", "--mib", "8"), {"mb_per_s", "server_rss_peak_mib"}),
        (("create", "--n", "2"), {"control_plane_share_ms", "node_p50_ms", "bare_run_p50_ms"}),
        (("suspend", "--n", "2"), {"total_p50_ms", "bytes_read", "bytes_new", "bytes_uploaded"}),
        (("wake", "--n", "2"), {"first_command_p50_ms"}),
        (("fork", "--n", "1", "--children", "2"), {"total_p50_ms", "checkpoint_p50_ms"}),
        (("density", "--n", "2"), {"pss_mib", "machine_pss_mib", "server_share_mib", "baseline_pss_mib"}),
    ],
)
def test_each_prints_one_object_with_its_baseline(server: Instance, arguments: tuple[str, ...], more: set[str]) -> None:
    found = json.loads(server.space("bench", *arguments, "--json").stdout)
    assert found.keys() >= FIELDS | more
    assert found["runtime"] == "gvisor"
    assert found["ratio"] > 0
    assert all(found[name] is not None for name in more)


@pytest.mark.root
def test_creates_from_a_pool_are_hits_and_the_pool_goes_with_the_measurement(server: Instance) -> None:
    found = json.loads(server.space("bench", "create", "--pool", "--n", "2", "--json", "--memory", "128").stdout)
    assert (found["n"], found["hits"], found["runtime"]) == (2, 2, "gvisor")
    assert found["ratio"] > 0
    assert found["control_plane_share_ms"] > 0
    arguments = ("--n", "1", "--size", "3", "--memory", "128", "--json")
    found = json.loads(server.space("bench", "burst", *arguments).stdout)
    assert (found["n"], found["hits"], found["size"]) == (3, 3, 3)
    assert found["ratio"] > 0
    assert json.loads(server.space("pool", "list", "-o", "json").stdout) == {"items": []}


@pytest.mark.root
def test_bare_machines_leave_nothing_behind(server: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    with Child("space.cli.bench.bare_machines", str(server.data_dir)) as child:
        for what in ("run", "restore", "checkpoint", "node"):
            assert child.ask(what=what)["ms"] > 10
        assert len(child.ask(what="burst", count=3)["all_ms"]) == 3
        assert child.ask(what="pss")["pss_mib"] > 5
        tags = child.ask(what="names")["tags"]
        assert len(tags) == 2
        assert left_of(tags)
    assert left_of(tags) == []


def left_of(tags: list[str]) -> list[str]:
    """Return what the kernel holds of these instances."""
    found = [path.name for path in Path("/run/netns").iterdir()]
    found += Path("/proc/mounts").read_text().splitlines()
    found += [str(path) for path in Path("/sys/fs/cgroup").glob("**/space-*")]
    return [name for name in found if any(tag in name for tag in tags) or "/space-bench-" in name]

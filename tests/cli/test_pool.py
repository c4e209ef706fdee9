"""`space pool` against a whole server over a node in memory."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.instance import Instance

from space.cli.bench.child import Child
from space.cli.bench.warm import WarmPool
from space.cli.entry import enter
from space.sdk import Client, Sandbox

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def place() -> Iterator[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "src"))
        with Child("space.cli.bench.temporary_api") as child:
            yield child.ask()


@pytest.fixture
def client(place: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("SPACE_API_URL", place["url"])
    monkeypatch.setenv("SPACE_API_TOKEN", place["token"])
    with Client() as made:
        yield made


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("client")
def test_a_pool_is_set_listed_and_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    assert enter(["pool", "set", "base", "1", "--max", "3", "--memory", "256", "-o", "json"]) == 0
    pool = said(capsys)
    assert (pool["min"], pool["max"], pool["resources"]["memory_mib"]) == (1, 3, 256)
    deadline = time.monotonic() + 20
    while True:
        assert enter(["pool", "list", "-o", "json"]) == 0
        (pool,) = said(capsys)["items"]
        if pool["ready"] == 1 or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    assert pool["ready"] == 1
    assert enter(["pool", "list"]) == 0
    assert capsys.readouterr().out.split("\t")[:5] == ["base", "fake", "1 cpu, 256 MiB, disk 2048 MiB", "1", "3"]
    assert enter(["pool", "delete", "base"]) == 0
    assert capsys.readouterr().out == "base\n"
    assert enter(["pool", "list", "-o", "json"]) == 0
    assert said(capsys) == {"items": []}


@pytest.mark.usefixtures("client")
def test_what_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert enter(["pool", "delete", "nosuch", "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "not_found"
    assert enter(["pool", "set", "nosuch", "1"]) == 1
    assert "nosuch" in capsys.readouterr().err


def test_a_measurement_s_pool_fills_serves_and_leaves_the_pools_that_were_there(client: Client) -> None:
    body = {"template": "base", "min": 1, "max": 2, "resources": {"memory_mib": 128}}
    client.transport.request("PUT", "/v1/pools", json=body)
    with WarmPool(client, 3, memory_mib=128) as warm:
        warm.fill()
        Sandbox.create(memory_mib=128, client=client).kill()
        warm.fill()
        assert warm.status()["hits"] == 1
        with WarmPool(client, 1, memory_mib=64) as other:
            other.fill()
    pools = {pool["resources"]["memory_mib"]: pool for pool in client.get("/v1/pools")["items"]}
    assert (pools[128]["min"], pools[128]["max"]) == (1, 2)
    assert (pools[64]["min"], pools[64]["max"]) == (0, 0)
    client.transport.request("DELETE", "/v1/pools/base")
    with WarmPool(client, 1, memory_mib=64):
        pass
    assert client.get("/v1/pools")["items"] == []


@pytest.mark.root
def test_warm_machines_outlive_a_killed_server_and_go_with_the_setting(tmp_path: Path, templates_dir: Path) -> None:
    instance = Instance(tmp_path / "space", templates_dir, {"SPACE_POOLS": "base=2"})
    try:
        instance.up()
        ready(instance, 2)
        machines = set(instance.machine_pids())
        assert len(machines) == 2
        instance.kill_9()
        instance.up()
        ready(instance, 2)
        assert set(instance.machine_pids()) == machines
        with instance.client() as client, Sandbox.create(client=client) as sandbox:
            assert sandbox.exec(["cat", "/etc/hostname"]).exit_code == 0
            assert ready(instance, 2)["hits"] == 1
            instance.space("down")
            instance.up(SPACE_POOLS="")
            until(lambda: len(instance.machine_pids()) == 1)  # the sandbox stays
            assert sandbox.exec(["true"]).exit_code == 0
            assert json.loads(instance.space("pool", "list", "-o", "json").stdout) == {"items": []}
    finally:
        instance.remove()


def ready(instance: Instance, count: int) -> dict[str, Any]:
    """Wait until the only pool has so many machines ready."""

    def pool() -> dict[str, Any]:
        (found,) = json.loads(instance.space("pool", "list", "-o", "json").stdout)["items"]
        return dict(found)

    until(lambda: pool()["ready"] == count)
    return pool()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)

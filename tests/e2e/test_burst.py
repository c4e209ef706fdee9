"""Many creates at once on a warm pool of real machines: each serves one of them, the rest start or are told why not."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.e2e.instance import Instance

from space.sdk import CapacityUnavailableError, Client, Sandbox

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


def pool_of(client: Client) -> dict[str, Any]:
    (pool,) = client.get("/v1/pools")["items"]
    return dict(pool)


@pytest.mark.parametrize(
    ("creates", "warm"), [(12, 4), pytest.param(60, 20, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_a_burst_on_a_small_pool_uses_each_warm_machine_once(
    make_instance: Callable[..., Instance], creates: int, warm: int
) -> None:
    instance = make_instance()
    with instance.client() as client:
        size = {"template": "base", "resources": {"memory_mib": 256}}
        client.transport.request("PUT", "/v1/pools", json={**size, "min": warm, "max": warm})
        deadline = time.monotonic() + 120
        while pool_of(client)["ready"] < warm:
            assert time.monotonic() < deadline, pool_of(client)
            time.sleep(0.1)
        parked = set(instance.machine_pids("mch"))
        assert len(parked) == warm
        outcomes: list[Sandbox | BaseException] = []
        begin = threading.Barrier(creates)

        def create() -> None:
            begin.wait()
            try:
                outcomes.append(Sandbox.create("base", memory_mib=256, client=client))
            except BaseException as error:
                outcomes.append(error)

        threads = [threading.Thread(target=create) for _ in range(creates)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        made = [each for each in outcomes if isinstance(each, Sandbox)]
        errors = [each for each in outcomes if not isinstance(each, Sandbox)]
        assert all(isinstance(error, CapacityUnavailableError) for error in errors), errors
        assert len(made) >= warm
        identities = [sandbox.exec(["cat", "/etc/machine-id"]).stdout.strip() for sandbox in made]
        assert len(set(identities)) == len(made), "no machine serves two"
        assert [sandbox.exec(["hostname"]).stdout.strip() for sandbox in made] == [sandbox.id for sandbox in made]
        pool = pool_of(client)
        assert pool["hits"] >= warm
        assert pool["hits"] + pool["misses"] == len(made)
        assert len(instance.machine_pids()) - pool["ready"] - pool["starting"] <= len(made)
        for sandbox in made:
            sandbox.kill(wait=False)
        for sandbox in made:
            sandbox.wait_until("deleted")
        client.transport.request("DELETE", "/v1/pools/base")
        deadline = time.monotonic() + 60
        while left := instance.machine_pids():
            assert time.monotonic() < deadline, left
            time.sleep(0.1)

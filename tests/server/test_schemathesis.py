"""The OpenAPI document against a live server: what it promises holds for requests that nobody thought of.

The server runs in a thread of its own over a node in memory whose programs end at once.
"""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case, GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.config._checks import PositiveDataAcceptanceConfig
from tests.server.harness import serving

from space.core.node import MachineRef
from space.core.ports import ProcessOrder, SessionStatus
from space.server.api import all_endpoints
from space.server.openapi import document
from space.server.v1.schemas.shared import MAX_PATH_BYTES
from space.testing.node import FakeNode

pytestmark = pytest.mark.live

schemathesis.serializer.alias("application/x-tar", "application/octet-stream")
CONFIG = SchemathesisConfig()
CONFIG.projects.default.checks.positive_data_acceptance = PositiveDataAcceptanceConfig(
    expected_statuses=["2xx", "3xx", "401", "403", "404", "409", "422", "429", "5xx"]  # 422: a feature that is not here
)
SCHEMA = schemathesis.openapi.from_dict(document(all_endpoints()), config=CONFIG).exclude(
    operation_id="readSessionEvents"  # the data plane's
)
EXAMPLES = 5
HEALTH = list(HealthCheck)  # how long the data takes to make is no matter
PHASES = (Phase.explicit, Phase.generate)  # no shrinking: a failure names its request anyway


class QuickNode(FakeNode):
    """A node whose programs print a line and end."""

    async def start_process(self, ref: MachineRef, order: ProcessOrder) -> SessionStatus:
        status = await super().start_process(ref, order)
        if status.exited_at is None:
            self.write_output(order.session_id, b"42\n")
            self.exit_process(order.session_id)
        return status


@dataclass(slots=True)
class Live:
    """A server in another thread."""

    url: str = ""
    token: str = ""
    sandbox_id: str = ""


async def _serve(directory: Path, live: Live, ready: threading.Event, stop: asyncio.Event) -> None:
    async with serving(directory, QuickNode()) as server:
        async with server.client() as client:
            live.sandbox_id = await server.sandbox(client)
        live.url, live.token = server.api_url, server.admin
        ready.set()
        await stop.wait()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    directory = tmp_path_factory.mktemp("live")
    found, ready, stop = Live(), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(_serve(directory, found, ready, stop),))
    thread.start()
    assert ready.wait(30)
    yield found
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    loop.close()


def made_possible(case: Case, live: Live) -> Case:
    """Put into a valid request what no schema can tell: a sandbox that exists, no invented cursor, a future."""
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return case
    is_of_files = "/files" in case.path  # they stay with sandboxes that do not exist: this node has no files
    if "sandbox_id" in case.path_parameters and case.method != "DELETE" and not is_of_files:
        case.path_parameters["sandbox_id"] = live.sandbox_id
    case.query.pop("cursor", None)
    if len(str(case.query.get("path", "")).encode()) > MAX_PATH_BYTES:
        case.query["path"] = "/long"
    body = case.body if isinstance(case.body, dict) else {}
    if case.path == "/v1/pools" and (body.get("max") or 0) < body.get("min", 0):
        body.pop("max", None)
    if case.path == "/auth/v1/tokens" and body.get("expires_at") is not None:
        body["expires_at"] = "2999-01-01T00:00:00Z"
    return case


@SCHEMA.parametrize()
@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, phases=PHASES, suppress_health_check=list(HealthCheck)
)
def test_the_document_holds(case: Case, live: Live) -> None:
    headers = {"Authorization": f"Bearer {live.token}"}
    made_possible(case, live).call_and_validate(base_url=live.url, headers=headers)

"""A well-formed call of every endpoint, for tests that vary one thing about all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from space.server.api import all_endpoints
from space.server.endpoint import Endpoint

IDS = {
    "sandbox_id": "sbx06d1q8vg3rq5n7h2c4f9k0e8s0",
    "operation_id": "ops06d1q8vg3rq5n7h2c4f9k0e8s4",
    "session_id": "ses06d1q8vg3rq5n7h2c4f9k0e8s8",
    "process_id": "prc06d1q8vg3rq5n7h2c4f9k0e8sc",
    "project_id": "prj06d1q8vg3rq5n7h2c4f9k0e8sg",
    "token_id": "tok06d1q8vg3rq5n7h2c4f9k0e8sk",
    "user_id": "usr06d1q8vg3rq5n7h2c4f9k0e8so",
    "snapshot_id": "snp06d1q8vg3rq5n7h2c4f9k0e900",
    "template": "nosuch",
}


@dataclass(frozen=True, slots=True)
class CallOf:
    """One endpoint, and what to send to it."""

    endpoint: Endpoint

    def __str__(self) -> str:
        return self.endpoint.document.id

    @property
    def method(self) -> str:
        return self.endpoint.method

    def path(self, **ids: str) -> str:
        return self.endpoint.path.format(**{**IDS, **ids})

    @property
    def params(self) -> dict[str, str]:
        return {"path": "/tmp/x"} if "/files" in self.endpoint.path and not self.body else {}

    @property
    def body(self) -> Any:
        return next(iter(self.endpoint.document.requests.values()), None)

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for `httpx.AsyncClient.request`."""
        sent: dict[str, Any] = {"method": self.method, "params": self.params}
        if self.body is not None:
            sent["json"] = self.body
        elif self.endpoint.document.media_type is not None:
            sent["content"] = b"bytes"
        return sent


def api_calls() -> list[CallOf]:
    """Return a call of every endpoint of the API's own server."""
    return [CallOf(one) for one in all_endpoints() if not one.document.is_data_plane]


def named(calls: Sequence[CallOf]) -> list[Any]:
    """Show calls as test parameters by their operationIds."""
    return [pytest.param(call, id=str(call)) for call in calls]

"""gVisor passes the suite that every runtime has to pass."""

from collections.abc import Callable
from typing import Any

import pytest

from space.testing.conformance.runtime import RuntimeConformance
from space.testing.conformance.snapshot import SnapshotConformance

pytestmark = pytest.mark.root


class TestGVisor(RuntimeConformance, SnapshotConformance):
    @pytest.fixture
    async def host(self, make_host: Callable[..., Any]) -> Any:
        return make_host("echo")

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.server.harness import Server, serving, whole_server

from space.testing.node import FakeNode


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
async def server(tmp_path: Path, node: FakeNode) -> AsyncIterator[Server]:
    """The API over a node in memory: quick, and its commands do what the test says."""
    async with serving(tmp_path, node) as made:
        yield made


@pytest.fixture
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with server.client() as made:
        yield made


@pytest.fixture
async def whole(tmp_path: Path) -> AsyncIterator[Server]:
    """The API over real guest agents."""
    async with whole_server(tmp_path) as made:
        yield made


@pytest.fixture
async def whole_client(whole: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with whole.client() as made:
        yield made


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """One server for all tests of a module that call it wrongly and so change nothing."""
    async with serving(tmp_path_factory.mktemp("shared"), FakeNode()) as made:
        yield made


@pytest.fixture
async def shared_client(shared: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with shared.client() as made:
        yield made

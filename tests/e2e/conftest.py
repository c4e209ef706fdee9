from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.instance import Instance

from space.sdk import Client, Sandbox


@pytest.fixture
def make_instance(tmp_path: Path, templates_dir: Path) -> Iterator[Callable[..., Instance]]:
    made: list[Instance] = []

    def make(**settings: str) -> Instance:
        instance = Instance(tmp_path / f"space{len(made)}", templates_dir, settings)
        made.append(instance)
        instance.up()
        return instance

    yield make
    for instance in made:
        instance.remove()


@pytest.fixture
def instance(make_instance: Callable[..., Instance]) -> Instance:
    """An instance of this test's own, to be broken."""
    return make_instance()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, templates_dir: Path) -> Iterator[Instance]:
    """One instance for all tests of a module that leave it whole."""
    made = Instance(tmp_path_factory.mktemp("server") / "space", templates_dir)
    try:
        made.up()
        yield made
    finally:
        made.remove()


@pytest.fixture
def client(server: Instance) -> Iterator[Client]:
    with server.client() as made:
        yield made


@pytest.fixture
def sandbox(client: Client) -> Iterator[Sandbox]:
    with Sandbox.create("base", client=client) as made:
        yield made

import os
import uuid
from collections.abc import Iterator, Mapping

import pytest
from tests.storage.objects.s3 import BUCKET, s3_server


@pytest.fixture(scope="session")
def _s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3")) as environment:
        yield environment


@pytest.fixture
def s3_environment(_s3: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Set the variables with which obstore reaches a server of our own, and return them."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in _s3.items():
        monkeypatch.setenv(name, value)
    return _s3


@pytest.fixture
def s3_url() -> str:
    """Return the URL of an empty place in the bucket."""
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/deeper"

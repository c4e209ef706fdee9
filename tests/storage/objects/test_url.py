"""Which store a URL means, and which are refused."""

from pathlib import Path

import pytest

from space.core.errors import InvalidRequest, Unavailable
from space.storage.objects import DirectoryObjects, open_objects

pytestmark = pytest.mark.anyio


async def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    objects = open_objects(f"file://{tmp_path}/my%20objects", {})
    assert isinstance(objects, DirectoryObjects)
    await objects.put("a/1", b"x")
    assert (tmp_path / "my objects/a/1").read_bytes() == b"x"


@pytest.mark.parametrize(
    "url",
    ["", "objects", "file://host/objects", "file:relative", "s3://", "http://bucket/", "s3://user:password@bucket/",
     "s3://bucket/?password=x", "ftp://bucket/password"],
)  # fmt: skip
def test_any_other_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        open_objects(url, {})
    assert "password" not in caught.value.message


def test_an_endpoint_without_tls_is_refused_unless_it_is_here_or_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with pytest.raises(InvalidRequest, match="no TLS"):
        open_objects("s3://bucket", {"AWS_ENDPOINT_URL": "http://store.example:9000"})
    open_objects("s3://bucket", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"})
    open_objects("s3://bucket", {"AWS_ENDPOINT_URL": "http://[::1]:9000"})
    open_objects("s3://bucket", {"AWS_ENDPOINT_URL": "http://store.example:9000", "AWS_ALLOW_HTTP": "true"})


async def test_a_store_that_is_not_there_is_unavailable_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "AKIAX",
        "AWS_SECRET_ACCESS_KEY": "very-secret",
        "AWS_REGION": "us-east-1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    objects = open_objects("s3://bucket/prefix", environment)
    with pytest.raises(Unavailable, match="s3://bucket/prefix does not answer") as caught:
        await objects.head("a/1")
    assert "secret" not in repr(caught.value)

"""A bucket, at a real S3 server."""

from collections.abc import Mapping

import pytest

from space.core.errors import Unavailable
from space.core.ports import ObjectStore
from space.storage.objects import open_objects
from space.testing.conformance.objects import ObjectStoreConformance, keys

pytestmark = [pytest.mark.anyio, pytest.mark.live]


@pytest.fixture
def objects(s3_environment: Mapping[str, str], s3_url: str) -> ObjectStore:
    return open_objects(s3_url, s3_environment)


class TestBucket(ObjectStoreConformance):
    """The suite."""


async def test_prefixes_of_one_bucket_are_stores_of_their_own(s3_environment: Mapping[str, str], s3_url: str) -> None:
    one, other = open_objects(s3_url, s3_environment), open_objects(s3_url + "-other", s3_environment)
    await one.put("a/1", b"mine")
    assert await other.head("a/1") is None
    assert await keys(other, "a/") == set()


async def test_wrong_credentials_are_an_error_that_names_no_secret(
    s3_environment: Mapping[str, str], s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAWRONG")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    objects = open_objects(s3_url, s3_environment)
    with pytest.raises(Unavailable, match="refuses access") as caught:
        await objects.put("a/1", b"x")
    assert "secret" not in str(caught.value)
    assert "AKIA" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_a_bucket_that_does_not_exist_is_an_error_that_names_it(s3_environment: Mapping[str, str]) -> None:
    objects = open_objects("s3://nowhere/here", s3_environment)
    for call in (objects.put("a/1", b"x"), objects.get("a/1"), keys(objects, "a/")):
        with pytest.raises(Unavailable, match="s3://nowhere/here does not exist"):
            await call

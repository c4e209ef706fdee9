"""Which object store a URL means."""

import ipaddress
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import S3Store

from space.core.errors import InvalidRequest
from space.storage.objects.bucket import BucketObjects
from space.storage.objects.directory import DirectoryObjects

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

#: An object is at most a few MiB, nearly always under one; what takes longer than this is not coming.
_REQUEST = timedelta(seconds=20)
_RETRIES: "RetryConfig" = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}


def open_objects(url: str, environment: Mapping[str, str]) -> BucketObjects:
    """Return the store at `file:///DIRECTORY` or `s3://BUCKET/PREFIX`; nothing is asked of a bucket yet.

    S3's region, credentials and endpoint are the usual `AWS_*` variables, which obstore reads by itself.  An endpoint
    without TLS is accepted on loopback; elsewhere only with `AWS_ALLOW_HTTP=true`.

    Raises:
        InvalidRequest: the URL means nothing; it is not repeated, since it might hold a secret.
    """
    parts = urlsplit(url)
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidRequest(
            "SPACE_OBJECT_STORE_URL has more than scheme, bucket and path; credentials come from AWS_*"
        )
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return DirectoryObjects(Path(unquote(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        return _bucket(parts.netloc, parts.path.strip("/"), environment)
    raise InvalidRequest("SPACE_OBJECT_STORE_URL must be file:///DIRECTORY or s3://BUCKET/PREFIX")


def _bucket(bucket: str, prefix: str, environment: Mapping[str, str]) -> BucketObjects:
    name = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
    client: ClientConfig = {"timeout": _REQUEST, "connect_timeout": timedelta(seconds=5)}
    endpoint = urlsplit(environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or "")
    if endpoint.scheme == "http":
        if not _is_loopback(endpoint.hostname or "") and environment.get("AWS_ALLOW_HTTP", "").lower() != "true":
            raise InvalidRequest(f"the endpoint of {name} has no TLS; use https, or set AWS_ALLOW_HTTP=true")
        client["allow_http"] = True
    try:
        store = S3Store(bucket, prefix=prefix or None, client_options=client, retry_config=_RETRIES)
    except (BaseError, ValueError):
        raise InvalidRequest(f"the AWS_* variables for {name} cannot be used") from None
    return BucketObjects(store, name=name)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

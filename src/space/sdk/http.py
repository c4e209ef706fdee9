"""What both sides of the SDK tell httpx."""

import socket
import ssl
import time
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import httpx

import space
from space.sdk.errors import ProtocolError, SpaceError, UnreachableError, error_from_answer

#: Seconds.  `pool` never: a stream holds its connection for as long as it likes.
TIMEOUT = httpx.Timeout(30.0, connect=10.0, pool=None)
#: The server sends a comment every 15 s: three missed ones mean that the connection is dead.
STREAM_TIMEOUT = httpx.Timeout(30.0, connect=10.0, read=45.0, pool=None)
#: For calls that last as long as a command or a file does; keepalive notices a dead peer.
UNHURRIED = httpx.Timeout(30.0, connect=10.0, read=None, write=None, pool=None)
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=30.0)

RETRYABLE_FAULTS = (
    httpx.NetworkError,
    httpx.TimeoutException,
    httpx.RemoteProtocolError,
    httpx.ProxyError,
    httpx.StreamError,
)


def user_agent() -> str:
    """Say who calls, for the server's log."""
    return f"space-sdk/{space.__version__}"


def new_idempotency_key() -> str:
    """Make the key that lets a POST be sent twice and act once."""
    return uuid.uuid4().hex


def socket_options() -> list[tuple[int, int, int]]:
    """Have the kernel notice a peer that vanished, since `exec` may wait for hours without a byte."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def tls_context(url: str) -> ssl.SSLContext:
    """Return the usual context for https; for http one that trusts nobody, since loading the CAs takes 20 ms."""
    if urlsplit(url).scheme == "https":
        return httpx.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def fault(error: Exception, url: str) -> UnreachableError:
    """Turn httpx's error into ours; only those after which the same request may succeed are retryable."""
    place = origin(url)
    text = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return UnreachableError(
            f"cannot reach {place}: {text}; is the server up (`space status`)?", retryable=True, was_sent=False
        )
    return UnreachableError(f"the connection to {place} broke: {text}", retryable=isinstance(error, RETRYABLE_FAULTS))


def is_unsent(error: SpaceError) -> bool:
    """Whether no server can have seen the request that failed so."""
    return isinstance(error, UnreachableError) and not error.was_sent


def answer_error(response: httpx.Response) -> SpaceError:
    """Make the error that a read response of 4xx or 5xx means."""
    try:
        body = response.json()
    except ValueError:
        body = None
    return error_from_answer(response.status_code, response.headers, body, now=time.time())


def answer_json(response: httpx.Response) -> Any:
    """Return the JSON of a successful answer; None if it has no body."""
    if not response.content:
        return None
    try:
        return response.json()
    except ValueError as error:
        raise ProtocolError(
            f"{origin(str(response.url))} answered {response.status_code} without JSON; is it a SPACE server?",
            status=response.status_code,
            request_id=response.headers.get("x-request-id"),
        ) from error


def answer_object(response: httpx.Response) -> Mapping[str, Any]:
    """Return the JSON object of a successful answer."""
    body = answer_json(response)
    if not isinstance(body, dict):
        raise ProtocolError("the server's answer is not a JSON object", status=response.status_code)
    return body


def origin(url: str) -> str:
    """Return scheme, host and port of a URL, without any credentials in it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")


def on_data_plane(events_url: str, data_plane_url: str | None, api_url: str) -> str:
    """Return the URL at which to read events: the server's own, unless the caller's way to it is another."""
    parts = urlsplit(events_url)
    base = urlsplit(data_plane_url or (api_url if not parts.netloc else events_url))
    prefix = base.path.rstrip("/") if data_plane_url else ""
    return urlunsplit((base.scheme, base.netloc, prefix + parts.path, parts.query, ""))


def segment(text: str) -> str:
    """Quote an id for a path, so that whatever it holds stays one segment."""
    return quote(text, safe="") or "-"

# Generated from ../_async/transport.py by scripts/generate_sync_sdk.py: change it there.
"""Sending requests: authentication, retries and errors, the same for every call."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from space.sdk import http
from space.sdk.errors import SpaceError
from space.sdk.retry import Attempts, RetryPolicy
from space.sdk.settings import ClientSettings

Content = bytes | Iterable[bytes]


class Transport:
    """One server, one token; safe to share."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        retry: RetryPolicy | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.settings = settings
        self.retry = retry or RetryPolicy()
        self._transport = transport
        self._clients: dict[str, httpx.Client] = {}

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        content: Callable[[], Content] | None = None,
        timeout: httpx.Timeout | None = None,
        attempts: int | None = None,
        only_unsent: bool = False,
        stream: bool = False,
    ) -> httpx.Response:
        """Send a request until it succeeds or may not be tried again; raise the last error.

        `content` is called for each attempt; if it cannot begin anew, or if acting twice would do harm, pass
        `only_unsent`: then only a request that never reached a server is sent again.  With `stream` the body is left
        unread, and the caller closes the response.
        """
        policy = self.retry if attempts is None else RetryPolicy(attempts=attempts)
        tries = Attempts(policy)
        extra = dict(headers or {})
        if method == "POST":
            extra.setdefault("Idempotency-Key", http.new_idempotency_key())
        while True:
            try:
                return self._send(
                    method,
                    self.settings.api_url + path,
                    headers={"Authorization": f"Bearer {self.settings.token}", **extra},
                    json=json,
                    query=query,
                    content=content() if content is not None else None,
                    timeout=timeout or http.TIMEOUT,
                    stream=stream,
                )
            except SpaceError as error:
                delay = tries.delay_after(error)
                if delay is None or (only_unsent and not http.is_unsent(error)):
                    raise
            time.sleep(delay)

    def open_stream(self, url: str, *, token: str, last_event_id: str | None, start: int | None) -> httpx.Response:
        """Open an event stream once; the caller closes it.  No retry here: `Events` knows where to go on."""
        headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream", "Accept-Encoding": "identity"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        query = {"from": start} if start is not None and last_event_id is None else None
        return self._send("GET", url, headers=headers, query=query, timeout=http.STREAM_TIMEOUT, stream=True)

    def close(self) -> None:
        """Close all connections; the transport may be used again."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout: httpx.Timeout,
        json: Any = None,
        query: Mapping[str, Any] | None = None,
        content: Content | None = None,
        stream: bool = False,
    ) -> httpx.Response:
        try:
            client = self._client(url)
            request = client.build_request(
                method,
                url,
                headers=headers,
                json=json,
                params=query,
                content=content,
                timeout=timeout,
            )
            response = client.send(request, stream=stream)
            if response.status_code < 400:
                return response
            try:
                response.read()
            finally:
                response.close()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise http.fault(error, url) from error
        raise http.answer_error(response)

    def _client(self, url: str) -> httpx.Client:
        scheme = urlsplit(url).scheme
        found = self._clients.get(scheme)
        if found is None:
            made = httpx.Client(
                transport=self._transport
                or httpx.HTTPTransport(
                    verify=http.tls_context(url), limits=http.LIMITS, socket_options=http.socket_options()
                ),
                headers={"User-Agent": http.user_agent()},
            )
            found = self._clients.setdefault(scheme, made)  # another thread may have been quicker
        return found

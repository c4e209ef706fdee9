"""uvicorn's HTTP/1.1 protocol with our envelope for what is no HTTP, and bounds on the head of a request.

Neither reaches an ASGI application: the parser refuses the one, and would keep the other in memory as it comes, for as
long as it takes.  Nobody has shown a token yet, so whoever can connect could hold every file descriptor of the server.
"""

import asyncio
import secrets
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from space.core.errors import InvalidRequest
from space.server.errors import envelope

MAX_HEAD_BYTES = 65_536
HEAD_SECONDS = 30.0  #: from the connection, or from a later request's first byte, to the end of its headers


class HttpProtocol(HttpToolsProtocol):
    """One connection.  Pass the class to `uvicorn.Config(http=…)`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_between = True  #: no request has begun since the last one ended
        self._is_in_head = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_has_come()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        belongs_to_head = self._is_between or self._is_in_head  # else it may begin with the end of a body
        super().data_received(data)
        if self._is_in_head and belongs_to_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(f"the headers are larger than {MAX_HEAD_BYTES} bytes", limit=MAX_HEAD_BYTES)

        elif self._is_between and self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_head()  # it was a line break before a request, which ended uvicorn's own timer

    def on_message_begin(self) -> None:
        self._is_between = False
        self._is_in_head = True
        self._head_bytes = 0
        if self._head_timer is None:
            self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._head_has_come()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_between = True
        super().on_message_complete()

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _head_has_come(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def send_400_response(self, msg: str) -> None:
        self._refuse("this is no HTTP/1.1 request")

    def _refuse(self, message: str, **details: Any) -> None:
        request_id = "req-" + secrets.token_hex(10)
        body = envelope(InvalidRequest(message, **details), request_id)
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {request_id}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

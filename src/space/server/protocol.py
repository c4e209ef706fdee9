"""uvicorn's HTTP/1.1 protocol with our envelope for what is no HTTP, and a bound on the head of a request.

Neither reaches an ASGI application: the parser refuses the one, and would keep the other in memory as it comes.
"""

import secrets
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from space.core.errors import InvalidRequest
from space.server.errors import envelope

MAX_HEAD_BYTES = 65_536


class HttpProtocol(HttpToolsProtocol):
    """One connection.  Pass the class to `uvicorn.Config(http=…)`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_between = True  #: no request has begun since the last one ended
        self._is_in_head = False
        self._head_bytes = 0

    def data_received(self, data: bytes) -> None:
        belongs_to_head = self._is_between or self._is_in_head  # else it may begin with the end of a body
        super().data_received(data)
        if self._is_in_head and belongs_to_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(f"the headers are larger than {MAX_HEAD_BYTES} bytes", limit=MAX_HEAD_BYTES)

    def on_message_begin(self) -> None:
        self._is_between = False
        self._is_in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_between = True
        super().on_message_complete()

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

"""An HTTP client for measuring: one kept connection, one call at a time, as little work for each as Python can do.

What the client costs is counted with what it measures wherever both share the cores, so it must not be the larger part.
"""

import asyncio
import json
import re
from typing import Any
from urllib.parse import urlsplit

from space.cli.failure import CommandError

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_TIMEOUT_SECONDS = 120.0


class Caller:
    """Calls the API with a token.  `open` it, and `close` it in the end."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self) -> "Caller":
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    def close(self) -> None:
        self._writer.close()

    async def post(self, path: str, body: Any, *, prefer: str | None = None) -> Any:
        """Return the answer's object; raises `CommandError` unless it is a success."""
        content = json.dumps(body).encode()
        extra = f"Prefer: {prefer}\r\n" if prefer else ""
        head = f"POST {path} HTTP/1.1\r\n{self._head}{extra}Content-Length: {len(content)}\r\n\r\n"
        return await self._call(head.encode() + content)

    async def delete(self, path: str, *, prefer: str | None = None) -> Any:
        extra = f"Prefer: {prefer}\r\n" if prefer else ""
        return await self._call(f"DELETE {path} HTTP/1.1\r\n{self._head}{extra}\r\n".encode())

    async def _call(self, request: bytes) -> Any:
        self._writer.write(request)
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            if length is None:
                raise CommandError(f"the server answered {head[:60]!r}")
            content = await self._reader.readexactly(int(length[1]))
        if not head.startswith(b"HTTP/1.1 2"):
            raise CommandError(f"the server answered {content[:500].decode(errors='replace')}")
        return json.loads(content)

# Generated from ../_async/files.py by scripts/generate_sync_sdk.py: change it there.
"""Files in a sandbox: bytes streamed both ways, so memory use does not depend on sizes."""

import json
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import httpx

from space.sdk import http
from space.sdk._sync.pieces import read_piece, write_piece
from space.sdk._sync.transport import Transport
from space.sdk.bodies import without_none
from space.sdk.errors import NotFoundError, ProtocolError
from space.sdk.model import FileEvent, FileInfo
from space.sdk.sources import Source, is_replayable, measured, opened, position_of
from space.sdk.sse import Frame, FrameParser

PIECE = 256 * 1024


class Files:
    """The files of one sandbox.  Paths are absolute in the guest."""

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport = transport
        self._base = f"/v1/sandboxes/{sandbox_id}/files"

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Read a whole file, or `length` bytes from `start`, into memory."""
        with self.stream(path, start=start, length=length) as pieces:
            return b"".join([piece for piece in pieces])

    def read_text(self, path: str) -> str:
        """Read a whole file as UTF-8."""
        return (self.read(path)).decode()

    @contextmanager
    def stream(self, path: str, *, start: int = 0, length: int | None = None) -> Iterator[Iterator[bytes]]:
        """Open a file for reading in pieces; a piece is at most some 64 KiB."""
        headers = {"Accept-Encoding": "identity"}
        if length == 0:
            self.stat(path)  # a range cannot be empty, but a missing file is an error still
            yield _nothing()
            return
        if start or length is not None:
            headers["Range"] = f"bytes={start}-" + (str(start + length - 1) if length is not None else "")
        with self._reading("", {"path": path}, headers) as pieces:
            yield pieces

    def download(self, path: str, target: BinaryIO | Path | str) -> int:
        """Write a file's bytes to a local one; return how many."""
        with self.stream(path) as pieces:
            return _save(pieces, target)

    def write(
        self,
        path: str,
        data: bytes | str | BinaryIO | Path | Iterable[bytes],
        *,
        mode: int | None = None,
        user: str | None = None,
    ) -> FileInfo | None:
        """Write a file atomically, creating its parents.

        `data` may be bytes, text, a local path, a binary file or an iterable of bytes; only what can begin anew is
        sent again after a broken connection.
        """
        query = {"path": path, "mode": None if mode is None else f"{mode:04o}", "user": user}
        response = self._upload("", query, data)
        body = http.answer_json(response)
        return FileInfo.parse(body) if isinstance(body, dict) and "path" in body else None

    def list(self, path: str, *, depth: int = 1, limit: int | None = None) -> list[FileInfo]:
        """List what is below a directory, sorted by path."""
        query = without_none({"path": path, "depth": depth, "limit": limit})
        body = http.answer_object(self._transport.request("GET", f"{self._base}:list", query=query))
        return [FileInfo.parse(item) for item in body.get("items", ())]

    def stat(self, path: str) -> FileInfo:
        """Describe one path; a link is not followed."""
        response = self._transport.request("GET", f"{self._base}:stat", query={"path": path})
        return FileInfo.parse(http.answer_object(response))

    def exists(self, path: str) -> bool:
        """Whether there is anything at the path."""
        try:
            self.stat(path)
        except NotFoundError:
            return False
        return True

    def move(self, source: str, target: str) -> FileInfo:
        """Rename within the sandbox."""
        body = {"source": source, "target": target}
        return FileInfo.parse(http.answer_object(self._transport.request("POST", f"{self._base}:move", json=body)))

    def mkdir(self, path: str, *, mode: int | None = None, user: str | None = None) -> FileInfo:
        """Create a directory and its parents; succeeds if it is one already."""
        body = without_none({"path": path, "mode": None if mode is None else f"{mode:04o}", "user": user})
        return FileInfo.parse(http.answer_object(self._transport.request("POST", f"{self._base}:mkdir", json=body)))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, or with `recursive` a directory and all in it."""
        query = {"path": path, "recursive": "true" if recursive else "false"}
        self._transport.request("DELETE", self._base, query=query)

    @contextmanager
    def archive(self, path: str) -> Iterator[Iterator[bytes]]:
        """Open a directory as an uncompressed tar, in pieces."""
        with self._reading(":archive", {"path": path}, {"Accept-Encoding": "identity"}) as pieces:
            yield pieces

    def unpack(
        self, path: str, data: bytes | BinaryIO | Path | Iterable[bytes], *, user: str | None = None
    ) -> dict[str, Any]:
        """Unpack a tar below a directory; returns what the server counted."""
        response = self._upload(":archive", {"path": path, "user": user}, data)
        body = http.answer_json(response)
        return dict(body) if isinstance(body, dict) else {}

    def watch(self, path: str, *, recursive: bool = False) -> Iterator[FileEvent]:
        """Yield changes below a path until the connection breaks; what happened before is not told."""
        query = {"path": path, "recursive": "true" if recursive else "false"}
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        response = self._transport.request(
            "GET", f"{self._base}:watch", query=query, headers=headers, timeout=http.STREAM_TIMEOUT, stream=True
        )
        parser = FrameParser()
        with closing(response), closing(self._pieces(response)) as pieces:
            for piece in pieces:
                for frame in parser.feed(piece):
                    yield _file_event(frame)

    @contextmanager
    def _reading(self, suffix: str, query: dict[str, Any], headers: dict[str, str]) -> Iterator[Iterator[bytes]]:
        response = self._transport.request(
            "GET", self._base + suffix, query=query, headers=headers, timeout=http.UNHURRIED, stream=True
        )
        with closing(response), closing(self._pieces(response)) as pieces:
            yield pieces

    def _pieces(self, response: httpx.Response) -> Generator[bytes, None, None]:
        try:
            yield from response.iter_raw()
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise http.fault(error, str(response.url)) from error

    def _upload(self, suffix: str, query: dict[str, Any], data: Source | Iterable[bytes]) -> httpx.Response:
        if isinstance(data, Path):
            with opened(data, "rb") as file:
                return self._upload(suffix, query, file)
        source = data.encode() if isinstance(data, str) else data
        start = position_of(source)
        return self._transport.request(
            "PUT",
            self._base + suffix,
            query=without_none(query),
            headers={"Content-Type": "application/octet-stream", **measured(source)},
            content=lambda: _content(source, start),
            only_unsent=not is_replayable(source),
            timeout=http.UNHURRIED,
        )


def _content(source: Any, start: int | None) -> bytes | Iterable[bytes]:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    return _read_all(source, start) if hasattr(source, "read") else source


def _read_all(file: BinaryIO, start: int | None) -> Iterator[bytes]:
    if start is not None:
        file.seek(start)
    while piece := read_piece(file, PIECE):
        yield piece


def _nothing() -> Iterator[bytes]:
    return
    yield b""


def _save(pieces: Iterator[bytes], target: BinaryIO | Path | str) -> int:
    if isinstance(target, Path | str):
        with opened(target, "wb") as file:
            return _save(pieces, file)
    count = 0
    for piece in pieces:
        write_piece(target, piece)
        count += len(piece)
    return count


def _file_event(frame: Frame) -> FileEvent:
    try:
        return FileEvent.parse(json.loads(frame.data))
    except (ValueError, AttributeError) as error:
        raise ProtocolError(f"the stream sent a malformed file event: {error!r}") from error

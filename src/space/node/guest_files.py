"""The files of a guest: the file methods of `core.ports.NodeClient`, for the one machine at the other end."""

import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from space.core.errors import GuestUnreachable, InvalidRequest
from space.core.file import FileEvent, FileInfo, FileType
from space.node.guest_connection import GuestConnection
from space.node.guest_process import natural
from space.node.guest_transfer import Transfer
from space_guest.protocol import ProtocolError

T = TypeVar("T")

MAX_PATH = 4096
MAX_NAME = 255
MAX_LINE = 64 * 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS = frozenset({"created", "modified", "removed", "moved", "overflow"})


class GuestFiles(GuestConnection):
    """File requests over one connection."""

    @asynccontextmanager
    async def read_file(
        self, path: str, *, start: int = 0, length: int | None = None
    ) -> AsyncIterator[tuple[FileInfo, AsyncIterator[bytes]]]:
        """Open a regular file; the iterator yields exactly the asked range, as far as the file reaches, or raises."""
        transfer = self._transfer("read", {"path": check_path(path), "start": start, "length": length}, subject=path)
        try:
            info = _trusted(file_info, await transfer.opened())
            async with aclosing(_exactly(transfer, _expected(info.size, start, length))) as chunks:
                yield info, chunks
        finally:
            transfer.cancel()

    async def write_file(
        self, path: str, source: AsyncIterable[bytes], *, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        """Write atomically; an exception of `source` leaves the file as it was and goes on to the caller."""
        args: dict[str, Any] = {"path": check_path(path), "mode": mode}
        if user is not None:
            args["user"] = check_user(user)
        return await self._upload("write", args, source, subject=path, parse=file_info)

    async def stat_file(self, path: str) -> FileInfo:
        return _trusted(file_info, await self._call("stat", {"path": check_path(path)}, subject=path))

    async def list_files(self, path: str, *, depth: int = 1, limit: int = 1000) -> Sequence[FileInfo]:
        """List below a directory, sorted by path, to `depth` levels, at most `limit` entries."""
        args = {"path": check_path(path), "depth": depth, "limit": limit}
        transfer = self._transfer("list", args, subject=path)
        try:
            found: list[FileInfo] = []
            async with aclosing(_objects(transfer)) as entries:
                async for entry in entries:
                    found.append(_trusted(file_info, entry))
                    if len(found) > limit:
                        raise GuestUnreachable("the guest agent broke the protocol: more entries than were asked for")
            return found
        finally:
            transfer.cancel()

    async def move_file(self, source: str, target: str) -> FileInfo:
        args = {"source": check_path(source, "source"), "target": check_path(target, "target")}
        return _trusted(file_info, await self._call("move", args, subject=f"{source} to {target}"))

    async def make_directory(self, path: str, *, mode: int | None = None, user: str | None = None) -> FileInfo:
        args: dict[str, Any] = {"path": check_path(path), "mode": mode}
        if user is not None:
            args["user"] = check_user(user)
        return _trusted(file_info, await self._call("make_directory", args, subject=path))

    async def remove_file(self, path: str, *, recursive: bool = False) -> None:
        await self._call("remove", {"path": check_path(path), "recursive": recursive}, subject=path, seconds=600)

    async def watch_files(self, path: str, *, recursive: bool = False) -> AsyncGenerator[FileEvent, None]:
        """Yield changes until the caller stops or the watched path is gone."""
        args = {"path": check_path(path), "recursive": recursive}
        transfer = self._transfer("watch", args, subject=path, stall=None)
        try:
            await transfer.opened()
            async with aclosing(_objects(transfer)) as entries:
                async for entry in entries:
                    yield _trusted(_file_event, entry)
        finally:
            transfer.cancel()

    @asynccontextmanager
    async def read_archive(self, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream a directory as an uncompressed tar."""
        transfer = self._transfer("read_archive", {"path": check_path(path)}, subject=path)
        try:
            await transfer.opened()
            async with aclosing(_chunks(transfer)) as chunks:
                yield chunks
        finally:
            transfer.cancel()

    async def write_archive(
        self, path: str, source: AsyncIterable[bytes], *, user: str | None = None
    ) -> Mapping[str, Any]:
        """Unpack a tar below a directory, which is made if it is missing; return `{"files", "bytes"}`."""
        args: dict[str, Any] = {"path": check_path(path)}
        if user is not None:
            args["user"] = check_user(user)

        def counts(body: Mapping[str, Any]) -> Mapping[str, Any]:
            return {"files": natural(body, "files"), "bytes": natural(body, "bytes")}

        return await self._upload("write_archive", args, source, subject=path, parse=counts)

    async def _upload(
        self,
        op: str,
        args: Mapping[str, Any],
        source: AsyncIterable[bytes],
        *,
        subject: str,
        parse: Callable[[Mapping[str, Any]], T],
    ) -> T:
        transfer = self._transfer(op, args, subject=subject)
        try:
            await transfer.send(source)
            return _trusted(parse, await transfer.reply())
        finally:
            transfer.cancel()

    def _transfer(self, op: str, args: Mapping[str, Any], *, subject: str, **options: Any) -> Transfer:
        transfer = Transfer(subject, self._send, room=self._room, **options)
        transfer.number = self._open(transfer, op, args)
        return transfer


def check_path(path: str, field: str = "path") -> str:
    """Return `path` if it may be sent to a guest: absolute, without `..`, NUL bytes or lone surrogates."""
    if not path.startswith("/"):
        raise InvalidRequest(f"{field} must be absolute", field=field)
    if "\0" in path:
        raise InvalidRequest(f"{field} holds a NUL byte", field=field)
    if ".." in path.split("/"):
        raise InvalidRequest(f"{field} may not have .. in it; name the file directly", field=field)
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field} is not valid Unicode", field=field) from None
    if len(encoded) > MAX_PATH or max(map(len, encoded.split(b"/"))) > MAX_NAME:
        raise InvalidRequest(f"{field} is too long", field=field, limit=MAX_PATH)
    return path


def check_user(user: str) -> str:
    """Return `user` if it may be a user's name."""
    if not 0 < len(user) <= 64 or not user.isascii() or not user.isprintable():
        raise InvalidRequest("user is no user's name", field="user")
    return user


def file_info(body: Mapping[str, Any]) -> FileInfo:
    """Return a file as the agent describes it; raises `ProtocolError` if that makes no sense."""
    mode, size, modified = natural(body, "mode"), natural(body, "size"), natural(body, "modified_ns")
    kind, target = body.get("type"), body.get("target")
    if kind not in FileType.__members__.values() or mode > 0o7777 or modified >= 2**62:
        raise ProtocolError("a file that cannot be")
    return FileInfo(
        path=_text(body.get("path"), MAX_PATH),
        type=FileType(str(kind)),
        size=size,
        mode=mode,
        user=_text(body.get("user"), 256),
        group=_text(body.get("group"), 256),
        modified_at=_EPOCH + timedelta(microseconds=modified // 1000),
        target=None if target is None else _text(target, MAX_PATH),
        etag=_text(body.get("etag"), 128),
    )


def _file_event(body: Mapping[str, Any]) -> FileEvent:
    kind, at = body.get("kind"), natural(body, "at_ns")
    if not isinstance(kind, str) or kind not in _KINDS or at >= 2**62:
        raise ProtocolError("a change that cannot be")
    return FileEvent(kind=kind, path=_text(body.get("path"), MAX_PATH), at=_EPOCH + timedelta(microseconds=at // 1000))


def _text(value: object, limit: int) -> str:
    """Return a text that can be encoded and is not too long, control characters and all."""
    if not isinstance(value, str) or len(value) > limit:
        raise ProtocolError("a text is missing or too long")
    return value.encode("utf-8", "replace").decode()


def _trusted(parse: Callable[[Mapping[str, Any]], T], body: Mapping[str, Any]) -> T:
    """Parse what the agent said; nonsense is the agent's fault, not the caller's."""
    try:
        return parse(body)
    except (ProtocolError, OverflowError) as error:
        raise GuestUnreachable(f"the guest agent broke the protocol: {error}") from error


def _expected(size: int, start: int, length: int | None) -> int:
    rest = max(0, size - start)
    return rest if length is None else min(rest, length)


async def _chunks(transfer: Transfer) -> AsyncGenerator[bytes, None]:
    while chunk := await transfer.receive():
        yield chunk


async def _exactly(transfer: Transfer, count: int) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of `transfer`, which must be `count` together."""
    while chunk := await transfer.receive():
        count -= len(chunk)
        if count < 0:
            raise GuestUnreachable("the guest agent broke the protocol: more bytes than the file has")
        yield chunk
    if count:
        raise GuestUnreachable("the guest agent broke the protocol: fewer bytes than the file has")


async def _objects(transfer: Transfer) -> AsyncGenerator[Mapping[str, Any], None]:
    """Yield the JSON object of each line."""
    rest = b""
    while chunk := await transfer.receive():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE:
            raise GuestUnreachable("the guest agent broke the protocol: a line without end")
        for line in lines:
            yield _object(line)
    if rest:
        raise GuestUnreachable("the guest agent broke the protocol: half a line")


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise GuestUnreachable("the guest agent broke the protocol: a line that is not JSON") from error
    if not isinstance(value, dict):
        raise GuestUnreachable("the guest agent broke the protocol: a line that is no object")
    return value

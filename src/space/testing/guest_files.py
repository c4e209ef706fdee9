"""The files of a fake guest: a tree in memory with the agent's requests on top, errors and all."""

import asyncio
import base64
import errno
import io
import json
import tarfile
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from space_guest.protocol import CHUNK, FILE_WINDOW
from space_guest.request import Refused, Request

CAPACITY = 64 * 1024 * 1024


@dataclass
class Entry:
    """A file or a directory (`content` None)."""

    content: bytes | None
    mode: int
    user: str
    modified_ns: int = field(default_factory=time.time_ns)
    version: int = 0


class MemoryFiles:
    """A tree of at most 64 MiB; no links, no special files."""

    def __init__(self, default_user: str = "user") -> None:
        self.default_user = default_user
        self.capacity = CAPACITY
        self._entries = {path: Entry(None, 0o755, "root") for path in ("/", "/tmp", "/home", "/root", "/etc")}  # noqa: S108
        self._entries["/home/user"] = Entry(None, 0o755, "user")
        self._entries["/etc/hostname"] = Entry(b"sandbox\n", 0o644, "root")
        self._versions = 0
        self._listeners: list[Callable[[str, str], None]] = []

    # For programs and tests

    def is_directory(self, path: str) -> bool:
        found = self._entries.get(_clean(path))
        return found is not None and found.content is None

    def content(self, path: str) -> bytes | None:
        found = self._entries.get(_clean(path))
        return None if found is None else found.content

    # Requests

    def get(self, path: str) -> Entry:
        found = self._entries.get(path)
        if found is None:
            parent = self._entries.get(_parent(path))
            is_below_file = parent is not None and parent.content is not None
            number = errno.ENOTDIR if is_below_file else errno.ENOENT
            raise Refused("failed_precondition" if is_below_file else "not_found", errno=number)
        return found

    def file(self, path: str) -> bytes:
        content = self.get(path).content
        if content is None:
            raise Refused("failed_precondition", errno=errno.EISDIR)
        return content

    def check_writable(self, path: str) -> None:
        """Raise what a write to `path` would meet before its bytes."""
        if path == "/" or self.is_directory(path):
            raise Refused("failed_precondition", errno=errno.EISDIR)
        if path.startswith(("/proc/", "/sys/")):
            raise Refused("forbidden", errno=errno.EACCES)
        place = _parent(path)
        while place not in self._entries:
            place = _parent(place)
        if self._entries[place].content is not None:
            raise Refused("failed_precondition", errno=errno.ENOTDIR)

    def write(self, path: str, content: bytes, *, mode: int | None, user: str | None) -> None:
        self.check_writable(path)
        previous = self._entries.get(path)
        used = sum(len(entry.content or b"") for entry in self._entries.values())
        if used - len(previous.content or b"" if previous else b"") + len(content) > self.capacity:
            raise Refused("insufficient_storage", errno=errno.ENOSPC)
        self.make_directory(_parent(path), mode=None, user=user)
        kept_mode = previous.mode if previous else 0o644
        owner = user or (previous.user if previous else self.default_user)
        self._put(path, Entry(content, kept_mode if mode is None else mode, owner))

    def make_directory(self, path: str, *, mode: int | None, user: str | None) -> None:
        if path in self._entries:
            if not self.is_directory(path):
                raise Refused("failed_precondition", errno=errno.ENOTDIR)
            return
        self.make_directory(_parent(path), mode=None, user=user)
        self._put(path, Entry(None, 0o755 if mode is None else mode, user or self.default_user))

    def remove(self, path: str, *, recursive: bool) -> None:
        self.get(path)
        below = [other for other in self._entries if other.startswith(path.rstrip("/") + "/")]
        if path == "/":
            raise Refused("failed_precondition", "the root directory stays")
        if below and not recursive:
            raise Refused("failed_precondition", errno=errno.ENOTEMPTY)
        for other in [*below, path]:
            del self._entries[other]
            self._tell("removed", other)

    def move(self, source: str, target: str) -> None:
        self.get(source)
        self.get(_parent(target))
        if self.is_directory(target) or f"{target}/".startswith(f"{source}/"):
            raise Refused("failed_precondition", errno=errno.ENOTEMPTY)
        for path in [path for path in self._entries if path == source or path.startswith(f"{source}/")]:
            self._entries[target + path[len(source) :]] = self._entries.pop(path)
        self._tell("moved", source)
        self._tell("created", target)

    def below(self, path: str, depth: int) -> Iterator[str]:
        prefix = path.rstrip("/") + "/"
        for other in sorted(self._entries, key=lambda name: name.split("/")):
            rest = other[len(prefix) :] if other.startswith(prefix) else ""
            if rest and rest.count("/") < depth:
                yield other

    def describe(self, path: str) -> dict[str, Any]:
        entry = self.get(path)
        return {
            "path": path,
            "type": "directory" if entry.content is None else "file",
            "size": len(entry.content or b""),
            "mode": entry.mode,
            "user": entry.user,
            "group": entry.user,
            "modified_ns": entry.modified_ns,
            "target": None,
            "etag": f"{entry.version:x}",
        }

    def listen(self, call: Callable[[str, str], None]) -> Callable[[], None]:
        """Call `call(kind, path)` for each change; return how to stop."""
        self._listeners.append(call)
        return lambda: self._listeners.remove(call)

    # Saved

    def save(self) -> dict[str, Any]:
        """Return the tree in JSON's terms."""
        return {
            path: [
                None if entry.content is None else base64.b64encode(entry.content).decode(),
                *(entry.mode, entry.user, entry.modified_ns, entry.version),
            ]
            for path, entry in self._entries.items()
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Become the tree that was saved."""
        self._entries = {
            path: Entry(None if content is None else base64.b64decode(content), mode, user, modified_ns, version)
            for path, (content, mode, user, modified_ns, version) in saved.items()
        }
        self._versions = max((entry.version for entry in self._entries.values()), default=0)

    def _put(self, path: str, entry: Entry) -> None:
        self._versions += 1
        entry.version = self._versions
        kind = "modified" if path in self._entries else "created"
        self._entries[path] = entry
        self._tell(kind, path)

    def _tell(self, kind: str, path: str) -> None:
        for call in list(self._listeners):
            call(kind, path)


class RequestBytes:
    """The bytes of a request, for the coroutine that serves it."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._received: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._is_ended = False
        self.is_cancelled = False
        request.on_data = self._on_data
        request.on_end = self._on_end
        request.on_credit = self._changed.set
        request.on_cancel = self._on_cancel

    async def receive(self) -> AsyncIterator[bytes]:
        consumed = 0
        while True:
            await self._until(lambda: bool(self._received) or self._is_ended)
            if not self._received:
                return
            data = self._received.popleft()
            consumed += len(data)
            self._request.grant(consumed + FILE_WINDOW)
            yield data

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            await self._until(lambda: self._request.room > 0)
            piece = bytes(view[: min(CHUNK, self._request.room)])
            self._request.send(piece)
            view = view[len(piece) :]

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not self.is_cancelled:
            if is_so():
                return
            self._changed.clear()
            await self._changed.wait()
        raise asyncio.CancelledError

    def _on_data(self, data: bytes) -> None:
        self._received.append(data)
        self._changed.set()

    def _on_end(self) -> None:
        self._is_ended = True
        self._changed.set()

    def _on_cancel(self) -> None:
        self.is_cancelled = True
        self._changed.set()


Serve = Callable[[MemoryFiles, Request, RequestBytes], Awaitable[dict[str, Any]]]


def file_requests(files: MemoryFiles) -> Mapping[str, Callable[[Request], Awaitable[None]]]:
    """Return op → coroutine for every file request."""

    def bind(serve: Serve) -> Callable[[Request], Awaitable[None]]:
        def start(request: Request) -> Awaitable[None]:
            return _answer(request, serve(files, request, RequestBytes(request)))

        return start

    return {op: bind(serve) for op, serve in _REQUESTS.items()}


async def _answer(request: Request, work: Awaitable[dict[str, Any]]) -> None:
    try:
        request.reply(await work)
    except Refused as refused:
        request.fail(refused)
    except asyncio.CancelledError:
        if asyncio.current_task().cancelling():  # type: ignore[union-attr]  # else the node cancelled the request
            raise


async def _stat(files: MemoryFiles, request: Request, stream: RequestBytes) -> dict[str, Any]:
    return files.describe(_path(request))


async def _read(files: MemoryFiles, request: Request, stream: RequestBytes) -> dict[str, Any]:
    path = _path(request)
    content = files.file(path)
    request.opened(files.describe(path))
    start, length = request.args.get("start", 0), request.args.get("length")
    await stream.send(content[start:] if length is None else content[start : start + length])
    request.end()
    return {}


async def _write(files: MemoryFiles, request: Request, stream: RequestBytes) -> dict[str, Any]:
    path = _path(request)
    files.check_writable(path)
    content = bytearray()
    async for data in stream.receive():
        content += data
        if len(content) > files.capacity:
            raise Refused("insufficient_storage", errno=errno.ENOSPC)
    files.write(path, bytes(content), mode=request.args.get("mode"), user=_user(request))
    return files.describe(path)


async def _list(files: MemoryFiles, request: Request, stream: RequestBytes) -> dict[str, Any]:
    path = _path(request)
    if files.get(path).content is not None:
        raise Refused("failed_precondition", errno=errno.ENOTDIR)
    names = list(files.below(path, request.args["depth"]))[: request.args["limit"]]
    await stream.send(b"".join(json.dumps(files.describe(name)).encode() + b"\n" for name in names))
    request.end()
    return {}


async def _move(files: MemoryFiles, request: Request, stream: RequestBytes) -> dict[str, Any]:
    source, target = _path(request, "source"), _path(request, "target")
    files.move(source, target)
    return files.describe(target)


async def _make_directory(files: MemoryFiles, request: Request, stream: RequestBytes) -> dict[str, Any]:
    path = _path(request)
    files.make_directory(path, mode=request.args.get("mode"), user=_user(request))
    return files.describe(path)


async def _remove(files: MemoryFiles, request: Request, stream: RequestBytes) -> dict[str, Any]:
    files.remove(_path(request), recursive=request.args.get("recursive") is True)
    return {}


async def _watch(files: MemoryFiles, request: Request, stream: RequestBytes) -> dict[str, Any]:
    root, is_recursive = _path(request), request.args.get("recursive") is True
    files.get(root)
    waiting: deque[bytes] = deque(maxlen=10_000)
    changed = asyncio.Event()

    def tell(kind: str, path: str) -> None:
        inside = path == root or path.startswith(root.rstrip("/") + "/")
        if inside and (is_recursive or path == root or _parent(path) == root):
            waiting.append(json.dumps({"kind": kind, "path": path, "at_ns": time.time_ns()}).encode() + b"\n")
            changed.set()

    stop = files.listen(tell)
    request.opened({})
    on_cancel = request.on_cancel
    request.on_cancel = lambda: (on_cancel(), changed.set())[0]  # type: ignore[func-returns-value]
    try:
        while True:
            while waiting:
                await stream.send(waiting.popleft())
            changed.clear()
            await changed.wait()
            if stream.is_cancelled:
                raise asyncio.CancelledError
    finally:
        stop()


async def _read_archive(files: MemoryFiles, request: Request, stream: RequestBytes) -> dict[str, Any]:
    root = _path(request)
    if files.get(root).content is not None:
        raise Refused("failed_precondition", errno=errno.ENOTDIR)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in files.below(root, 64):
            content = files.get(path).content
            entry = tarfile.TarInfo(path[len(root.rstrip("/")) + 1 :])
            entry.mode = files.get(path).mode
            if content is None:
                entry.type = tarfile.DIRTYPE
            entry.size = len(content or b"")
            archive.addfile(entry, io.BytesIO(content or b""))
    request.opened({})
    await stream.send(buffer.getvalue())
    request.end()
    return {}


async def _write_archive(files: MemoryFiles, request: Request, stream: RequestBytes) -> dict[str, Any]:
    root, user = _path(request), _user(request)
    files.make_directory(root, mode=None, user=user)
    data = bytearray()
    async for block in stream.receive():
        data += block
        if len(data) > files.capacity:
            raise Refused("insufficient_storage", errno=errno.ENOSPC)
    counts = {"files": 0, "bytes": 0}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                _unpack(files, archive, member, root, user, counts)
    except (tarfile.TarError, EOFError) as error:
        raise Refused("invalid_request", f"not a whole tar archive: {error}") from None
    return counts


def _unpack(
    files: MemoryFiles,
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    root: str,
    user: str | None,
    counts: dict[str, int],
) -> None:
    if member.name.startswith("/") or ".." in member.name.split("/"):
        raise Refused("invalid_request", "an entry that leaves the directory")
    path = _clean(f"{root.rstrip('/')}/{member.name}")
    if member.isdir():
        files.make_directory(path, mode=member.mode & 0o777, user=user)
    elif member.isreg():
        source = archive.extractfile(member)
        content = source.read() if source else b""
        files.write(path, content, mode=member.mode & 0o777, user=user)
        counts["files"] += 1
        counts["bytes"] += len(content)
    else:
        raise Refused("invalid_request", "neither file nor directory")


_REQUESTS: Mapping[str, Serve] = {
    "stat": _stat,
    "read": _read,
    "write": _write,
    "list": _list,
    "move": _move,
    "make_directory": _make_directory,
    "remove": _remove,
    "watch": _watch,
    "read_archive": _read_archive,
    "write_archive": _write_archive,
}


def _path(request: Request, name: str = "path") -> str:
    path = request.args.get(name)
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        raise Refused("invalid_request", f"{name} is an absolute path")
    return _clean(path)


def _user(request: Request) -> str | None:
    user = request.args.get("user")
    if user is not None and user not in ("root", "user", "nobody") and not str(user).isdigit():
        raise Refused("invalid_request", "there is no such user")
    return user


def _clean(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"

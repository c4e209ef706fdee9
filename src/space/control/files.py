"""Files of sandboxes: the node's methods, for callers who may use the sandbox, with an audit entry before each change.

The entry is committed first, so that no change lacks one; if the node then refuses, a second entry says so.
"""

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from space.control.audit import entry_for
from space.control.awake import Awake
from space.control.bounds import check_path
from space.control.closing import closing
from space.core.account import Call, Principal
from space.core.errors import InvalidRequest, SpaceError
from space.core.file import FileEvent, FileInfo
from space.core.node import MachineRef
from space.core.ports import Clock, NodeClient
from space.core.store import Store

MAX_DEPTH = 32
MAX_ENTRIES = 10_000
MAX_USER = 64


class Files:
    """Reads and changes files in sandboxes that run, or that wake for it."""

    def __init__(self, store: Store, node: NodeClient, clock: Clock, awake: Awake) -> None:
        self._store = store
        self._node = node
        self._clock = clock
        self._awake = awake

    @asynccontextmanager
    async def read(
        self, who: Principal, sandbox_id: str, path: str, *, start: int = 0, length: int | None = None
    ) -> AsyncIterator[tuple[FileInfo, AsyncIterator[bytes]]]:
        """Open a regular file; `NotFound`, or `FailedPrecondition` for a directory."""
        check_path(path)
        if start < 0 or (length is not None and length < 0):
            raise InvalidRequest("a range begins at 0 or later and is not negative", field="Range")
        async with (
            self._awake.using(who, sandbox_id) as ref,
            self._node.read_file(ref, path, start=start, length=length) as opened,
        ):
            yield opened

    async def write(
        self,
        call: Call,
        sandbox_id: str,
        path: str,
        source: AsyncIterable[bytes],
        *,
        mode: int | None = None,
        user: str | None = None,
    ) -> FileInfo:
        """Write atomically, creating parents; `InsufficientStorage` on a full disk, and nothing is changed then."""
        check_path(path)
        _check_owner(mode, user)
        async with self._changing(call, sandbox_id, path=path) as ref:
            return await self._node.write_file(ref, path, source, mode=mode, user=user)

    async def stat(self, who: Principal, sandbox_id: str, path: str) -> FileInfo:
        check_path(path)
        async with self._awake.using(who, sandbox_id) as ref:
            return await self._node.stat_file(ref, path)

    async def list(
        self, who: Principal, sandbox_id: str, path: str, *, depth: int = 1, limit: int = 1000
    ) -> Sequence[FileInfo]:
        """List below a directory, sorted by path."""
        check_path(path)
        _check_range("depth", depth, MAX_DEPTH)
        _check_range("limit", limit, MAX_ENTRIES)
        async with self._awake.using(who, sandbox_id) as ref:
            return await self._node.list_files(ref, path, depth=depth, limit=limit)

    async def move(self, call: Call, sandbox_id: str, source: str, target: str) -> FileInfo:
        check_path(source, field="source")
        check_path(target, field="target")
        async with self._changing(call, sandbox_id, path=source, to=target) as ref:
            return await self._node.move_file(ref, source, target)

    async def mkdir(
        self, call: Call, sandbox_id: str, path: str, *, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        """Create a directory and its parents; succeeds if it is one already."""
        check_path(path)
        _check_owner(mode, user)
        async with self._changing(call, sandbox_id, path=path) as ref:
            return await self._node.make_directory(ref, path, mode=mode, user=user)

    async def remove(self, call: Call, sandbox_id: str, path: str, *, recursive: bool = False) -> None:
        check_path(path)
        async with self._changing(call, sandbox_id, path=path, recursive=recursive) as ref:
            await self._node.remove_file(ref, path, recursive=recursive)

    async def watch(
        self, who: Principal, sandbox_id: str, path: str, *, recursive: bool = False
    ) -> AsyncIterator[FileEvent]:
        """Yield changes from now on."""
        check_path(path)
        async with (
            self._awake.using(who, sandbox_id) as ref,
            closing(self._node.watch_files(ref, path, recursive=recursive)) as events,
        ):
            async for event in events:
                yield event

    @asynccontextmanager
    async def read_archive(self, who: Principal, sandbox_id: str, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream a directory as an uncompressed tar."""
        check_path(path)
        async with self._awake.using(who, sandbox_id) as ref, self._node.read_archive(ref, path) as stream:
            yield stream

    async def write_archive(
        self, call: Call, sandbox_id: str, path: str, source: AsyncIterable[bytes], *, user: str | None = None
    ) -> Mapping[str, Any]:
        """Unpack a tar below a directory."""
        check_path(path)
        _check_owner(None, user)
        async with self._changing(call, sandbox_id, path=path) as ref:
            return await self._node.write_archive(ref, path, source, user=user)

    @asynccontextmanager
    async def _changing(self, call: Call, sandbox_id: str, **details: Any) -> AsyncIterator[MachineRef]:
        """Write down the change before it happens, and its failure after."""
        async with self._awake.using(call, sandbox_id) as ref:
            await self._store.audit.append(entry_for(call, self._clock.now(), target=ref.sandbox_id, **details))
            try:
                yield ref
            except SpaceError as error:
                await self._store.audit.append(
                    entry_for(call, self._clock.now(), target=ref.sandbox_id, outcome=error.code, **details)
                )
                raise


def _check_owner(mode: int | None, user: str | None) -> None:
    if mode is not None and not 0 <= mode <= 0o7777:
        raise InvalidRequest("mode is 0 to 7777, octal", field="mode")
    if user is not None and not (0 < len(user) <= MAX_USER and user.isprintable()):
        raise InvalidRequest(f"user is a name of 1 to {MAX_USER} characters", field="user", limit=MAX_USER)


def _check_range(field: str, value: int, limit: int) -> None:
    if not 1 <= value <= limit:
        raise InvalidRequest(f"{field} is 1 to {limit}", field=field, limit=limit)

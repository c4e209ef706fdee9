"""The file methods of `NodeClient`, for the machines of this node."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from space.core.file import FileEvent, FileInfo
from space.core.node import MachineRef
from space.node.guest import Guest
from space.node.machines import Machines


class NodeFiles:
    """Passes each call to the agent of its machine."""

    _machines: Machines

    async def started(self) -> None:
        """Return once the node takes orders."""
        raise NotImplementedError

    @asynccontextmanager
    async def _files(self, ref: MachineRef, *, is_transfer: bool = False) -> AsyncIterator[Guest]:
        await self.started()
        async with self._machines.get(ref).file_call(is_transfer=is_transfer) as guest:
            yield guest

    @asynccontextmanager
    async def read_file(
        self, ref: MachineRef, path: str, *, start: int = 0, length: int | None = None
    ) -> AsyncIterator[tuple[FileInfo, AsyncIterator[bytes]]]:
        async with (
            self._files(ref, is_transfer=True) as guest,
            guest.read_file(path, start=start, length=length) as found,
        ):
            yield found

    async def write_file(
        self,
        ref: MachineRef,
        path: str,
        source: AsyncIterable[bytes],
        *,
        mode: int | None = None,
        user: str | None = None,
    ) -> FileInfo:
        async with self._files(ref, is_transfer=True) as guest:
            return await guest.write_file(path, source, mode=mode, user=user)

    async def stat_file(self, ref: MachineRef, path: str) -> FileInfo:
        async with self._files(ref) as guest:
            return await guest.stat_file(path)

    async def list_files(self, ref: MachineRef, path: str, *, depth: int = 1, limit: int = 1000) -> Sequence[FileInfo]:
        async with self._files(ref) as guest:
            return await guest.list_files(path, depth=depth, limit=limit)

    async def move_file(self, ref: MachineRef, source: str, target: str) -> FileInfo:
        async with self._files(ref) as guest:
            return await guest.move_file(source, target)

    async def make_directory(
        self, ref: MachineRef, path: str, *, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        async with self._files(ref) as guest:
            return await guest.make_directory(path, mode=mode, user=user)

    async def remove_file(self, ref: MachineRef, path: str, *, recursive: bool = False) -> None:
        async with self._files(ref) as guest:
            await guest.remove_file(path, recursive=recursive)

    async def watch_files(
        self, ref: MachineRef, path: str, *, recursive: bool = False
    ) -> AsyncGenerator[FileEvent, None]:
        await self.started()
        async with aclosing(self._machines.get(ref).watch_files(path, recursive=recursive)) as events:
            async for event in events:
                yield event

    @asynccontextmanager
    async def read_archive(self, ref: MachineRef, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._files(ref, is_transfer=True) as guest, guest.read_archive(path) as chunks:
            yield chunks

    async def write_archive(
        self, ref: MachineRef, path: str, source: AsyncIterable[bytes], *, user: str | None = None
    ) -> Mapping[str, Any]:
        async with self._files(ref, is_transfer=True) as guest:
            return await guest.write_archive(path, source, user=user)

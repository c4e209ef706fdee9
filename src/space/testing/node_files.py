"""The node in memory, with files: enough to see what the control plane asks for, not a file system."""

import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from space.core.errors import FailedPrecondition, NotFound
from space.core.file import FileEvent, FileInfo, FileType
from space.core.ids import SandboxId
from space.core.node import MachineRef
from space.testing.node import FakeNode

_AT = datetime(2026, 1, 1, tzinfo=UTC)


class FileNode(FakeNode):
    """`FakeNode` whose machines have files: a mapping from path to bytes, and None for a directory."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[SandboxId, dict[str, bytes | None]] = self.memory  #: so that they are in its moments
        self.file_failures: list[Exception] = []  #: raised by the next changes, one each

    @asynccontextmanager
    async def read_file(
        self, ref: MachineRef, path: str, *, start: int = 0, length: int | None = None
    ) -> AsyncIterator[tuple[FileInfo, AsyncIterator[bytes]]]:
        data = self._tree(ref).get(path, b"")
        info = await self.stat_file(ref, path)
        if data is None:
            raise FailedPrecondition(f"{path} is a directory")
        part = data[start:] if length is None else data[start : start + length]

        async def chunks() -> AsyncIterator[bytes]:
            for offset in range(0, len(part), 4096):
                yield part[offset : offset + 4096]

        yield info, chunks()

    async def write_file(
        self,
        ref: MachineRef,
        path: str,
        source: AsyncIterable[bytes],
        *,
        mode: int | None = None,
        user: str | None = None,
    ) -> FileInfo:
        data = b"".join([chunk async for chunk in source])
        self._changing(ref)[path] = data
        return _info(path, data, mode=mode, user=user)

    async def stat_file(self, ref: MachineRef, path: str) -> FileInfo:
        tree = self._tree(ref)
        if path not in tree:
            raise NotFound(f"no file {path}")
        return _info(path, tree[path])

    async def list_files(self, ref: MachineRef, path: str, *, depth: int = 1, limit: int = 1000) -> Sequence[FileInfo]:
        prefix = path.rstrip("/") + "/"
        tree = self._tree(ref)
        return [_info(name, tree[name]) for name in sorted(tree) if name.startswith(prefix)][:limit]

    async def move_file(self, ref: MachineRef, source: str, target: str) -> FileInfo:
        tree = self._changing(ref)
        if source not in tree:
            raise NotFound(f"no file {source}")
        tree[target] = tree.pop(source)
        return _info(target, tree[target])

    async def make_directory(
        self, ref: MachineRef, path: str, *, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        self._changing(ref)[path] = None
        return _info(path, None, mode=mode, user=user)

    async def remove_file(self, ref: MachineRef, path: str, *, recursive: bool = False) -> None:
        if self._changing(ref).pop(path, b"") == b"":
            raise NotFound(f"no file {path}")

    async def watch_files(self, ref: MachineRef, path: str, *, recursive: bool = False) -> AsyncIterator[FileEvent]:
        self._machine(ref)
        yield FileEvent(kind="created", path=path, at=_AT)

    @asynccontextmanager
    async def read_archive(self, ref: MachineRef, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        self._machine(ref)

        async def chunks() -> AsyncIterator[bytes]:
            yield path.encode()

        yield chunks()

    async def write_archive(
        self, ref: MachineRef, path: str, source: AsyncIterable[bytes], *, user: str | None = None
    ) -> Mapping[str, Any]:
        self._changing(ref)
        return {"files": 1, "bytes": sum([len(chunk) async for chunk in source])}

    def _tree(self, ref: MachineRef) -> dict[str, bytes | None]:
        self._machine(ref)
        return self.files.setdefault(ref.sandbox_id, {})

    def _changing(self, ref: MachineRef) -> dict[str, bytes | None]:
        tree = self._tree(ref)
        if self.file_failures:
            raise self.file_failures.pop(0)
        return tree


def _info(path: str, data: bytes | None, *, mode: int | None = None, user: str | None = None) -> FileInfo:
    return FileInfo(
        path=path,
        type=FileType.DIRECTORY if data is None else FileType.FILE,
        size=len(data or b""),
        mode=mode if mode is not None else 0o644,
        user=user or "user",
        group="user",
        modified_at=_AT,
        target=None,
        etag=hashlib.sha256(data or b"").hexdigest()[:16],
    )

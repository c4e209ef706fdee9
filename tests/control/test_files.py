"""Files: the node's, for those who own the sandbox, with every change in the audit log before it happens."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from space.core.errors import (
    FailedPrecondition,
    InsufficientStorage,
    InvalidRequest,
    InvalidTransition,
    NotFound,
    SpaceError,
)
from space.testing.commands import CommandPlane, command_plane
from space.testing.control_plane import OTHER_PROJECT, principal
from space.testing.node_files import FileNode

pytestmark = pytest.mark.anyio


async def source(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def content(parts: CommandPlane, sandbox_id: str, path: str, **options: int) -> bytes:
    async with parts.files.read(parts.who, sandbox_id, path, **options) as (_, chunks):
        return b"".join([chunk async for chunk in chunks])


async def test_bytes_go_in_and_out_in_streams(tmp_path: Path) -> None:
    async with command_plane(tmp_path, node=FileNode()) as parts:
        sandbox = await parts.plane.running()
        info = await parts.files.write(
            parts.call("writeFile"), sandbox.id, "/a/b", source(b"one", b"two"), mode=0o600, user="root"
        )
        assert (info.size, info.mode, info.user) == (6, 0o600, "root")
        assert await content(parts, sandbox.id, "/a/b") == b"onetwo"
        assert await content(parts, sandbox.id, "/a/b", start=2, length=2) == b"et"
        assert [item.path for item in await parts.files.list(parts.who, sandbox.id, "/a")] == ["/a/b"]
        await parts.files.move(parts.call("moveFile"), sandbox.id, "/a/b", "/c")
        await parts.files.mkdir(parts.call("makeDirectory"), sandbox.id, "/d")
        with pytest.raises(FailedPrecondition):
            await content(parts, sandbox.id, "/d")
        await parts.files.remove(parts.call("removeFile"), sandbox.id, "/c")
        with pytest.raises(NotFound):
            await parts.files.stat(parts.who, sandbox.id, "/c")
        events = [event.path async for event in parts.files.watch(parts.who, sandbox.id, "/a")]
        assert events == ["/a"]
        async with parts.files.read_archive(parts.who, sandbox.id, "/a") as stream:
            assert [chunk async for chunk in stream] == [b"/a"]
        written = await parts.files.write_archive(parts.call("writeArchive"), sandbox.id, "/a", source(b"tar"))
        assert written["bytes"] == 3


async def test_changes_are_audited_and_reads_are_not(tmp_path: Path) -> None:
    node = FileNode()
    async with command_plane(tmp_path, node=node) as parts:
        sandbox = await parts.plane.running()
        before = len(await parts.audited())
        await parts.files.write(parts.call("writeFile"), sandbox.id, "/a", source(b"x"))
        await content(parts, sandbox.id, "/a")
        await parts.files.stat(parts.who, sandbox.id, "/a")
        await parts.files.remove(parts.call("removeFile"), sandbox.id, "/a", recursive=True)
        entries = (await parts.audited())[before:]
        assert [(entry.action, entry.target, entry.details["path"]) for entry in entries] == [
            ("writeFile", sandbox.id, "/a"),
            ("removeFile", sandbox.id, "/a"),
        ]


async def test_a_change_that_the_guest_refuses_is_audited_twice(tmp_path: Path) -> None:
    node = FileNode()
    async with command_plane(tmp_path, node=node) as parts:
        sandbox = await parts.plane.running()
        node.file_failures.append(InsufficientStorage("the sandbox's disk is full"))
        with pytest.raises(InsufficientStorage):
            await parts.files.write(parts.call("writeFile"), sandbox.id, "/a", source(b"x"))
        assert [entry.outcome for entry in await parts.audited(action="writeFile")] == ["ok", "insufficient_storage"]


async def test_no_change_happens_without_its_entry(tmp_path: Path) -> None:
    node = FileNode()
    async with command_plane(tmp_path, node=node) as parts:
        sandbox = await parts.plane.running()

        async def failing(*entries: object) -> None:
            raise InsufficientStorage("the disk of the server is full")

        append, parts.plane.store.audit.append = parts.plane.store.audit.append, failing  # type: ignore[method-assign,assignment]
        with pytest.raises(InsufficientStorage):
            await parts.files.write(parts.call("writeFile"), sandbox.id, "/a", source(b"x"))
        parts.plane.store.audit.append = append  # type: ignore[method-assign]
        assert node.files.get(sandbox.id, {}) == {}


async def test_another_project_cannot_reach_files(tmp_path: Path) -> None:
    node = FileNode()
    async with command_plane(tmp_path, node=node) as parts:
        sandbox = await parts.plane.running()
        await parts.files.write(parts.call(), sandbox.id, "/a", source(b"x"))
        stranger = principal(OTHER_PROJECT)
        call = parts.call(who=stranger)
        for attempt in (
            parts.files.write(call, sandbox.id, "/a", source(b"y")),
            parts.files.stat(stranger, sandbox.id, "/a"),
            parts.files.list(stranger, sandbox.id, "/"),
            parts.files.move(call, sandbox.id, "/a", "/b"),
            parts.files.mkdir(call, sandbox.id, "/b"),
            parts.files.remove(call, sandbox.id, "/a"),
            parts.files.write_archive(call, sandbox.id, "/", source(b"")),
            anext(parts.files.watch(stranger, sandbox.id, "/")),
            parts.files.read(stranger, sandbox.id, "/a").__aenter__(),
            parts.files.read_archive(stranger, sandbox.id, "/a").__aenter__(),
        ):
            with pytest.raises(NotFound) as refused:
                await attempt
            assert "/a" not in refused.value.message
        assert node.files[sandbox.id] == {"/a": b"x"}


@pytest.mark.parametrize("path", ["", "relative", "~/x", "/a\0b", "/" + "a" * 4096, "/\ud800", "C:\\x"])
async def test_a_path_that_no_guest_has_is_refused_before_it_gets_there(tmp_path: Path, path: str) -> None:
    node = FileNode()
    async with command_plane(tmp_path, node=node) as parts:
        sandbox = await parts.plane.running()
        for attempt in (
            parts.files.write(parts.call(), sandbox.id, path, source(b"x")),
            parts.files.stat(parts.who, sandbox.id, path),
            parts.files.list(parts.who, sandbox.id, path),
            parts.files.move(parts.call(), sandbox.id, "/a", path),
            parts.files.remove(parts.call(), sandbox.id, path),
            parts.files.read(parts.who, sandbox.id, path).__aenter__(),
        ):
            with pytest.raises(InvalidRequest):
                await attempt
        assert node.files.get(sandbox.id, {}) == {}


async def test_options_out_of_range_are_refused(tmp_path: Path) -> None:
    async with command_plane(tmp_path, node=FileNode()) as parts:
        sandbox = await parts.plane.running()
        for attempt in (
            parts.files.list(parts.who, sandbox.id, "/", depth=0),
            parts.files.list(parts.who, sandbox.id, "/", limit=10_001),
            parts.files.write(parts.call(), sandbox.id, "/a", source(), mode=0o10000),
            parts.files.mkdir(parts.call(), sandbox.id, "/a", user="u" * 65),
            parts.files.read(parts.who, sandbox.id, "/a", start=-1).__aenter__(),
        ):
            with pytest.raises(InvalidRequest):
                await attempt


async def test_a_sandbox_without_a_machine_says_so(tmp_path: Path) -> None:
    node = FileNode()
    async with command_plane(tmp_path, node=node, is_observed=False) as parts:
        sandbox = await parts.plane.running()
        await parts.plane.store.sandboxes.observe_exit(sandbox.id, 1, reason="oom", at=parts.plane.clock.now(), data={})
        with pytest.raises(InvalidTransition) as refused:
            await parts.files.stat(parts.who, sandbox.id, "/a")
        assert refused.value.details["current_state"] == "failed"


async def test_use_of_files_counts_as_activity_without_a_commit_for_each(tmp_path: Path) -> None:
    async with command_plane(tmp_path, node=FileNode()) as parts:
        sandbox = await parts.plane.running()
        await parts.files.write(parts.call(), sandbox.id, "/a", source(b"x"))
        assert (await parts.plane.get(sandbox.id)).last_active_at == sandbox.last_active_at
        noted = parts.activity.newest(sandbox.id)
        assert noted is not None
        await parts.activity.flush()
        assert (await parts.plane.get(sandbox.id)).last_active_at == noted
        assert parts.activity.newest(sandbox.id) is None


async def test_activity_that_could_not_be_written_stays_noted(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        parts.activity.touch(sandbox.id)
        touch = parts.plane.store.sandboxes.touch

        async def failing(used: object) -> None:
            raise SpaceError("no")

        parts.plane.store.sandboxes.touch = failing  # type: ignore[method-assign,assignment]
        with pytest.raises(SpaceError):
            await parts.activity.flush()
        parts.plane.store.sandboxes.touch = touch  # type: ignore[method-assign]
        assert parts.activity.newest(sandbox.id) is not None


async def test_a_sandbox_is_in_use_for_as_long_as_a_file_is_read(tmp_path: Path) -> None:
    async with command_plane(tmp_path, node=FileNode()) as parts:
        sandbox = await parts.plane.running()
        await parts.files.write(parts.call("writeFile"), sandbox.id, "/a", source(b"one"))
        async with parts.files.read(parts.who, sandbox.id, "/a"):
            await parts.activity.flush()
            assert parts.activity.newest(sandbox.id) is not None
        await parts.activity.flush()
        assert parts.activity.newest(sandbox.id) is None
